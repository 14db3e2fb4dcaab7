"""When an Envoy's configuration is read, and what of it is recorded."""

import contextlib

import pytest
import structlog

from control_plane.errors import PayloadError
from control_plane.lkg.dump import DumpError
from control_plane.lkg.files import CacheFiles
from control_plane.lkg.recorder import EnvoyAwayError, Recorder
from control_plane.lkg.store import CacheStore
from control_plane.lkg.world import versions
from control_plane.snapshot import LISTENER
from tests.unit.lkg.recorded_envoy import RecordedEnvoy


class Lab:
    """An Envoy that answers what a test says, and the recorder that follows it."""

    def __init__(self, directory):
        self.envoy = RecordedEnvoy.read("node")
        self.updates = 1
        self.away = self.fed_from_here = False
        self.asked = []
        self.files, self.store = CacheFiles(directory), CacheStore()
        self.now = 0.0
        self.recorder = Recorder(
            self.read, self.files, self.store, lambda: self.fed_from_here, lambda: self.now
        )

    async def read(self, path):
        if self.away:
            raise EnvoyAwayError("connection refused")
        self.asked.append(path)
        if path.startswith("/stats"):
            return (
                f"cluster.a.update_success: {self.updates}\n"
                f"cluster.control_plane.update_success: {len(self.asked)}\n"
            ).encode()
        answers = self.envoy.answers()
        return {
            "/config_dump?include_eds": answers.config_dump,
            "/clusters?format=json": answers.clusters,
            "/runtime": answers.runtime,
        }[path]

    @property
    def dumps(self):
        return self.asked.count("/config_dump?include_eds")

    def rename_listener_version(self, version):
        (listener,) = self.envoy.section("Listeners")["dynamic_listeners"]
        listener["active_state"]["version_info"] = version
        self.updates += 1

    def just_started(self):
        self.envoy.config_dump["configs"] = [self.envoy.section("Bootstrap")]
        self.updates = 0

    @property
    def on_disk(self):
        world = self.files.read().world
        return None if world is None else world.of_type(LISTENER)["mesh"].version


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


async def test_the_configuration_is_read_when_the_counters_moved_and_never_else(lab):
    for _ in range(5):
        await lab.recorder.poll()
    assert lab.dumps == 1
    assert lab.store.world is not None
    assert versions(lab.store.world) == lab.envoy.sent
    lab.rename_listener_version("v2")
    for _ in range(5):
        await lab.recorder.poll()
    assert lab.dumps == 2
    assert lab.on_disk == "v2"


async def test_streams_are_told_of_what_is_new_and_of_nothing_else(lab):
    first = lab.store.bell()
    await lab.recorder.poll()
    assert first.is_set()
    second = lab.store.bell()
    lab.updates += 1  # an update that changed nothing
    await lab.recorder.poll()
    assert not second.is_set()


async def test_an_envoy_that_has_just_started_clears_nothing(lab):
    await lab.recorder.poll()
    before = lab.on_disk
    lab.just_started()
    with pytest.raises(PayloadError, match="no listener"):
        await lab.recorder.poll()
    assert lab.on_disk == before
    assert lab.store.unready is None


async def test_an_envoy_that_is_fed_from_here_is_not_even_asked(lab):
    lab.fed_from_here = True
    await lab.recorder.poll()
    assert lab.asked == []
    lab.fed_from_here = False
    await lab.recorder.poll()
    assert lab.dumps == 1


async def test_an_outage_is_told_once_though_streams_come_and_go(lab):
    with structlog.testing.capture_logs() as logs:
        for second in range(60):
            lab.now, lab.fed_from_here = float(second), second < 40 and second % 4 < 3
            await lab.recorder.run_once()
    told = [entry["event"] for entry in logs if "served from" in entry["event"]]
    assert told == [
        "Envoy is served from this cache: it found no control plane",
        "Envoy is served from this cache no more",
    ]


async def test_what_is_no_whole_configuration_is_read_again_in_longer_intervals(lab):
    whole = lab.envoy.copy()
    lab.just_started()
    at = []
    for number in range(100):
        with contextlib.suppress(PayloadError):
            await lab.recorder.poll()
        if lab.dumps > len(at):
            at.append(number)
    assert at == [0, 1, 3, 7, 15, 31, 61, 91]
    lab.envoy = whole
    lab.updates += 1  # news are read at once
    await lab.recorder.poll()
    assert lab.store.world is not None


async def test_what_warms_is_recorded_once_it_is_in_force_though_no_counter_tells(lab):
    section = lab.envoy.section("Clusters")
    section["dynamic_warming_clusters"] = [section["dynamic_active_clusters"][0]]
    await lab.recorder.poll()
    del section["dynamic_warming_clusters"]
    (listener,) = lab.envoy.section("Listeners")["dynamic_listeners"]
    listener["active_state"]["version_info"] = "warm"
    for _ in range(2):
        await lab.recorder.poll()
    assert lab.on_disk == "warm"
    for _ in range(40):
        await lab.recorder.poll()
    assert lab.dumps == 2


async def test_a_reason_is_logged_once_until_it_is_another(lab):
    with structlog.testing.capture_logs() as logs:
        lab.away = True
        for _ in range(3):
            await lab.recorder.run_once()
        lab.away = False
        lab.envoy.config_dump = {"made": "up"}
        await lab.recorder.run_once()
        await lab.recorder.run_once()
    assert [entry["log_level"] for entry in logs] == ["info", "warning"]
    assert "connection refused" in logs[0]["reason"]
    assert "DumpError" in logs[1]["reason"]


async def test_a_configuration_that_stays_broken_is_told_louder(lab):
    lab.envoy.section("Routes")["dynamic_route_configs"] = []
    with structlog.testing.capture_logs() as logs:
        for _ in range(60):
            await lab.recorder.run_once()
    assert [entry["log_level"] for entry in logs] == ["info", "warning"]
    assert "routes 'mesh' are missing" in logs[1]["reason"]


async def test_answers_that_cannot_be_read_leave_the_last_good_configuration(lab):
    await lab.recorder.poll()
    lab.envoy.config_dump, lab.updates = {"made": "up"}, 9
    with pytest.raises(DumpError):
        await lab.recorder.poll()
    assert lab.store.world is not None
    assert lab.files.read().world is not None


async def test_a_configuration_that_cannot_be_written_is_tried_again(lab, tmp_path):
    class Broken(CacheFiles):
        def write(self, world):
            raise OSError(28, "No space left on device")

    recorder = Recorder(lab.read, Broken(tmp_path), lab.store, lambda: False)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            await recorder.poll()
    assert lab.store.unready is not None  # only what is on disk is in force
    assert lab.dumps == 2
