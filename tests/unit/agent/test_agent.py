"""The agent with real engine processes and a registry that is written by hand."""

import asyncio
import os
import signal
import sys

import pytest

from engines.agent import run_agent
from engines.launcher import Command
from engines.node_config import parse_node
from engines.registrar import RegistryError, UnknownServiceError
from engines.sockets import is_listening
from tests.support.eventually import eventually
from tests.support.processes import children, command_line


class FakeRegistry:
    """Keeps what was registered; may be away, and may forget everything."""

    def __init__(self):
        self.services = {}
        self.status = {}
        self.history = []
        self.away = False
        self.broken = False

    def _check(self):
        if self.away:
            raise RegistryError("away")
        if self.broken:
            raise RuntimeError("a bug in a client library")

    async def register(self, registration):
        self._check()
        self.services[registration.id] = registration
        self.status[registration.id] = registration.status
        self.history.append(("register", registration.meta["state"]))

    async def heartbeat(self, service_id, status, note):
        self._check()
        if service_id not in self.services:
            raise UnknownServiceError(service_id)
        if self.status[service_id] != status:
            self.history.append((status, note))
        self.status[service_id] = status

    async def deregister(self, service_id):
        self._check()
        self.services.pop(service_id, None)
        self.history.append(("deregister", ""))

    def forget(self):
        self.services.clear()
        self.status.clear()


class Host:
    """An agent that runs in this loop, its registry and its one simulated engine."""

    def __init__(self, root):
        self.root = root
        self.registry = FakeRegistry()
        text = (
            f"node: n\naddress: 127.0.0.1\nmesh_port: 9901\nsocket_dir: {root}/run\n"
            "engines: [{name: e0, model: acme/fox, version: v1, launcher: simulated}]"
        )
        self.config = parse_node(text.encode(), source="node.yaml")
        self.socket = root / "run" / "e0.sock"
        self.task = None

    def start(self, *commands):
        self.task = asyncio.ensure_future(
            run_agent(
                self.config,
                self.registry,
                log_dir=self.root / "logs",
                vllm_python=sys.executable,
                commands=commands,
            )
        )

    async def stop(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    @property
    def status(self):
        return self.registry.status.get("n.e0")

    def pid(self):
        owners = [p for p in children(os.getpid()) if str(self.socket) in command_line(p)]
        return owners[0] if owners else None


@pytest.fixture
async def host(short_tmp_path):
    host = Host(short_tmp_path)
    yield host
    if not host.task.done():
        await host.stop()


async def passing(host):
    await eventually(lambda: host.status == "passing", within_s=20)


async def test_an_engine_is_seen_warming_then_ready(host):
    host.start()
    await passing(host)
    states = [state for kind, state in host.registry.history if kind == "register"]
    assert states == ["warming", "ready"]
    registration = host.registry.services["n.e0"]
    assert (registration.address, registration.port) == ("127.0.0.1", 9901)
    assert set(registration.tags) == {"model=acme/fox", "version=v1"}
    assert registration.meta["socket"] == str(host.socket)
    assert registration.meta["keep_alive_s"] == "5"
    assert host.socket.stat().st_mode & 0o777 == 0o660


@pytest.mark.case("A2")
async def test_a2_a_killed_engine_is_told_at_once_and_comes_back(host):
    host.start()
    await passing(host)
    killed = host.pid()
    os.kill(killed, signal.SIGKILL)
    await eventually(lambda: host.status == "critical", within_s=1)
    assert host.socket.exists()  # a file that exists is not health
    await passing(host)
    assert host.pid() not in (None, killed)
    assert ("critical", "does not answer") in host.registry.history


async def test_an_engine_serves_on_while_the_registry_is_away(host):
    host.start()
    await passing(host)
    pid = host.pid()
    host.registry.away = True
    await asyncio.sleep(1.5)
    assert host.pid() == pid
    host.registry.forget()
    host.registry.away = False
    await eventually(lambda: host.status == "passing", within_s=3)
    assert host.pid() == pid


async def test_engines_outlive_a_bug_in_the_registrys_client(host):
    host.start()
    await passing(host)
    pid = host.pid()
    host.registry.broken = True
    await asyncio.sleep(1.5)
    host.registry.broken = False
    host.registry.forget()
    await eventually(lambda: host.status == "passing", within_s=3)
    assert host.pid() == pid


async def test_a_registry_that_comes_back_empty_is_told_again(host):
    host.start()
    await passing(host)
    host.registry.forget()
    await eventually(lambda: host.status == "passing", within_s=3)
    assert host.registry.services["n.e0"].status == "passing"


async def test_metadata_that_somebody_else_changed_is_left_alone(host):
    host.start()
    await passing(host)
    changed = host.registry.services["n.e0"]
    host.registry.services["n.e0"] = changed = object()
    await asyncio.sleep(2.5)  # two heartbeats
    assert host.registry.services["n.e0"] is changed


async def test_a_clean_stop_leaves_nothing(host):
    sleeper = Command(
        name="sleeper",
        argv=(sys.executable, "-c", "import time; time.sleep(60)"),
        env=dict(os.environ),
    )
    host.start(sleeper)
    await passing(host)
    pids = children(os.getpid())
    assert len(pids) >= 2
    await host.stop()
    assert host.registry.history[-1] == ("deregister", "")
    assert not host.socket.exists()
    assert not any(command_line(pid) for pid in pids)


async def test_an_engine_leaves_the_registry_before_it_ends(host):
    host.start()
    await passing(host)
    host.task.cancel()
    await eventually(lambda: not host.registry.services)
    assert is_listening(str(host.socket))  # still there for what is on its way
    await asyncio.gather(host.task, return_exceptions=True)


async def test_a_registry_that_is_away_does_not_hinder_a_stop(host):
    host.start()
    await passing(host)
    host.registry.away = True
    await host.stop()
    assert not host.socket.exists()


@pytest.mark.case("A2")
async def test_a2_what_stands_in_the_way_is_told_and_left(host, capfd):
    host.socket.parent.mkdir()
    host.socket.write_text("precious")
    host.start()
    await eventually(lambda: host.status == "critical", within_s=10)
    await asyncio.sleep(1)
    assert host.socket.read_text() == "precious"
    assert host.pid() is None
    host.socket.unlink()
    await passing(host)
