"""The agent with real engine processes and a registry that is written by hand."""

import asyncio
import os
import signal
import sys

import pytest

from engines.agent import run_agent
from engines.gpu_probe import GpuProbe
from engines.gpu_watch import GpuWatch
from engines.launcher import Command
from engines.node_config import parse_node
from engines.registrar import RegistryError, UnknownServiceError
from engines.sockets import is_listening
from tests.support.eventually import eventually
from tests.support.processes import children, command_line
from tests.support.recorded_nvml import RecordedNvml, h100, memory, no_tool


class FakeRegistry:
    """Keeps what was registered; may be away, and may forget everything."""

    def __init__(self):
        self.services = {}
        self.status = {}
        self.notes = {}
        self.history = []
        self.heartbeats = []  # status and note of each that arrived
        self.refusals = 0
        self.away = False
        self.broken = False

    def _check(self):
        if self.away:
            self.refusals += 1
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
        self.notes[service_id] = note
        self.heartbeats.append((status, note))

    async def deregister(self, service_id):
        self._check()
        self.services.pop(service_id, None)
        self.history.append(("deregister", ""))

    def forget(self):
        self.services.clear()
        self.status.clear()


conformance = pytest.mark.conformance
SIMULATED = "{name: e0, model: acme/fox, version: v1, launcher: simulated}"
VLLM = "{name: e0, model: acme/fox, version: v1}"
# In the place of a Python that has vLLM: takes its command line and serves as the simulation.
STUB_VLLM = f"""#!{sys.executable}
import os, sys
given = lambda flag: sys.argv[sys.argv.index(flag) + 1]
argv = ["-m", "engines.simulator", "--uds", given("--uds")]
argv += ["--served-model-name", given("--served-model-name")]
os.execv(sys.executable, [sys.executable, *argv])
"""


class Host:
    """An agent that runs in this loop, its registry and its engines."""

    def __init__(self, root, engines=SIMULATED, nvml=None):
        self.root = root
        self.registry = FakeRegistry()
        text = (
            f"node: n\naddress: 127.0.0.1\nmesh_port: 9901\nsocket_dir: {root}/run\n"
            f"engines: [{engines}]"
        )
        self.config = parse_node(text.encode(), source="node.yaml")
        self.nvml = nvml or RecordedNvml(absent="NVML Shared Library Not Found")
        self.socket = root / "run" / "e0.sock"
        self.task = None

    def start(self, *commands):
        python = self.root / "python"
        python.write_text(STUB_VLLM)
        python.chmod(0o700)
        self.task = asyncio.ensure_future(
            run_agent(
                self.config,
                self.registry,
                log_dir=self.root / "logs",
                vllm_python=str(python),
                commands=commands,
                gpus=GpuWatch(GpuProbe(self.nvml, no_tool).survey, period_s=0.05),
            )
        )

    async def stop(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    @property
    def status(self):
        return self.registry.status.get("n.e0")

    def meta(self, engine="n.e0"):
        registration = self.registry.services.get(engine)
        return {} if registration is None else registration.meta

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


@conformance("consul-22")
async def test_consul_22_a_registration_that_failed_is_tried_again(host):
    host.registry.away = True
    host.start()
    await eventually(lambda: host.registry.refusals >= 2, within_s=10)
    assert not host.registry.services
    host.registry.away = False
    await passing(host)
    assert host.meta()["model"] == "acme/fox"


@conformance("consul-24")
async def test_consul_24_heartbeats_come_within_half_the_ttl_and_say_the_same(host):
    host.start()
    await passing(host)
    for _ in range(3):
        told = len(host.registry.heartbeats)
        await eventually(
            lambda told=told: len(host.registry.heartbeats) > told, within_s=host.config.ttl_s / 2
        )
    kinds = set(host.registry.heartbeats)
    assert kinds <= {("critical", "does not answer"), ("passing", "answers")}


@conformance("consul-21")
async def test_consul_21_a_registry_that_comes_back_empty_is_told_again(host):
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


@conformance("consul-27")
async def test_consul_27_an_engine_leaves_the_registry_before_it_ends(host):
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


@pytest.fixture
async def hosts(short_tmp_path):
    """Makes hosts with cards; ends them all."""
    made = []

    def make(engines, *cards, nvml=None):
        made.append(Host(short_tmp_path, engines, nvml or RecordedNvml(*cards)))
        return made[-1]

    yield make
    for host in made:
        if host.task and not host.task.done():
            await host.stop()


async def test_what_the_driver_says_is_declared(hosts):
    host = hosts(VLLM, h100(EnforcedPowerLimit=500_000))
    host.start()
    await passing(host)
    assert {key: value for key, value in host.meta().items() if key.startswith("gpu_")} == {
        "gpu_model": "NVIDIA H100 80GB HBM3",
        "gpu_count": "1",
        "gpu_memory_mib": "81559",
        "gpu_compute_capability": "9.0",
        "gpu_power_limit_w": "500",
        "gpu_power_default_w": "700",
    }


async def test_what_node_yaml_says_wins_over_the_driver(hosts):
    stated = "{name: e0, model: m, gpus: [1], gpu_model: NVIDIA L4, gpu_power_limit_w: 40}"
    host = hosts(stated, h100(0), h100(1))
    host.start()
    await passing(host)
    meta = host.meta()
    assert (meta["gpu_model"], meta["gpu_power_limit_w"]) == ("NVIDIA L4", "40")
    assert meta["gpu_power_default_w"] == "700"


@conformance("consul-22")
async def test_consul_22_a_changed_power_limit_is_registered_and_nothing_restarts(hosts):
    host = hosts(VLLM, h100())
    host.start()
    await passing(host)
    pid = host.pid()
    host.nvml.cards[0] = h100(EnforcedPowerLimit=300_000)
    await eventually(lambda: host.meta()["gpu_power_limit_w"] == "300", within_s=3)
    registered = len(host.registry.history)
    host.nvml.cards[0] = h100(EnforcedPowerLimit=299_500, ClockInfoSm=1500)
    await asyncio.sleep(0.5)
    assert len(host.registry.history) == registered
    assert host.meta()["gpu_power_limit_w"] == "300"
    assert host.pid() == pid


@pytest.mark.case("F1")
async def test_f1_a_host_without_nvml_runs_vllm_as_before(hosts):
    host = hosts(VLLM, nvml=RecordedNvml(absent="NVML Shared Library Not Found"))
    host.start()
    await passing(host)
    assert not [key for key in host.meta() if key.startswith("gpu_")]


async def test_a_simulated_engine_declares_no_real_card(hosts):
    host = hosts(SIMULATED, h100())
    host.start()
    await passing(host)
    assert "gpu_model" not in host.meta()
    assert host.nvml.opened == 0  # and nobody asked


async def test_an_engine_whose_card_is_lost_keeps_what_it_declared(hosts):
    host = hosts(VLLM, h100())
    host.start()
    await passing(host)
    declared = host.meta()
    host.nvml.cards[0] = {"lost": True}
    await asyncio.sleep(0.5)
    assert host.meta() == declared
    assert host.status == "passing"


OLD = {"Name": "Tesla P40", "CudaComputeCapability": (6, 1), "MemoryInfo": memory(24576)}


async def test_an_engine_that_its_card_cannot_run_is_told_not_started_and_alone(hosts, capfd):
    engines = "{name: e0, model: m, gpus: [0]}, {name: e1, model: m, gpus: [1]}"
    host = hosts(engines, OLD, h100(1))
    host.start()
    await eventually(lambda: host.registry.status.get("n.e1") == "passing", within_s=20)
    assert host.status == "critical"
    assert host.pid() is None
    told = "not started: GPU 0 (Tesla P40) has compute capability 6.1"
    assert host.registry.notes["n.e0"].startswith(told)
    await asyncio.sleep(0.5)  # ten surveys, and it is told once
    assert capfd.readouterr().out.count("not started, waiting for a change") == 1
    host.nvml.cards[0] = h100(0)  # the card was changed
    await passing(host)
    assert host.meta()["gpu_model"] == "NVIDIA H100 80GB HBM3"


async def test_weights_that_do_not_fit_are_refused_before_the_start(hosts, short_tmp_path):
    weights = short_tmp_path / "model"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"")
    os.truncate(weights / "model.safetensors", 3 * 2**20)
    small = {**OLD, "CudaComputeCapability": (8, 0), "MemoryInfo": memory(3)}
    host = hosts(f"{{name: e0, model: m, model_path: {weights}}}", small)
    host.start()
    await eventually(lambda: "need 3 MiB" in host.registry.notes.get("n.e0", ""), within_s=5)
    assert host.pid() is None
    host.nvml.cards[0] = {**small, "MemoryInfo": memory(4)}
    await passing(host)


async def test_a_stop_does_not_wait_for_a_refused_engine(hosts):
    host = hosts(VLLM, OLD)
    host.start()
    await eventually(lambda: host.status == "critical", within_s=5)
    await host.stop()
    assert host.registry.history[-1] == ("deregister", "")
