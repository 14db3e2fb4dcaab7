"""The cache on disk: whole or not there, and what is bad is ignored aloud."""

import json
import stat

import pytest

from control_plane.lkg.dump import parse_dump
from control_plane.lkg.files import MANIFEST, PREVIOUS, CacheError, CacheFiles, LocalDisk
from control_plane.lkg.world import versions
from control_plane.snapshot import CLUSTER, ENDPOINT
from tests.unit.lkg.recorded_envoy import RecordedEnvoy

conformance = pytest.mark.conformance


class WatchedDisk(LocalDisk):
    """The real disk, with an account of what was done to it."""

    def __init__(self):
        self.done = []

    def write_synced(self, path, data):
        super().write_synced(path, data)
        self.done.append(("write", path.name))

    def rename(self, source, target):
        super().rename(source, target)
        self.done.append(("rename", source.name, target.name))
        assert source.parent == target.parent

    def sync_directory(self, path):
        super().sync_directory(path)
        self.done.append(("sync", path.name))


class FullDisk(LocalDisk):
    """A disk that is full after some files."""

    def __init__(self, room):
        self._room = room

    def write_synced(self, path, data):
        if self._room == 0:
            raise OSError(28, "No space left on device")
        self._room -= 1
        super().write_synced(path, data)


def world(role="node"):
    return parse_dump(RecordedEnvoy.read(role).answers()).world


def changed_world():
    """The node's world with other endpoints, and nothing else changed."""
    envoy = RecordedEnvoy.read("node")
    (locality,) = envoy.section("Endpoints")["dynamic_endpoint_configs"][0]["endpoint_config"][
        "endpoints"
    ]
    locality["lb_endpoints"][0]["load_balancing_weight"] = 4711
    return parse_dump(envoy.answers()).world


def file_of(directory, type_url, manifest=MANIFEST):
    return directory / json.loads((directory / manifest).read_bytes())[type_url]


@pytest.mark.parametrize("role", ["node", "edge"])
def test_what_was_written_is_read_with_its_versions_and_bytes(tmp_path, role):
    before = world(role)
    CacheFiles(tmp_path).write(before)
    read = CacheFiles(tmp_path).read()
    assert read.faults == ()
    assert read.world is not None
    assert versions(read.world) == versions(before)
    for type_url, resources in before.resources.items():
        for name, resource in resources.items():
            assert read.world.of_type(type_url)[name].body == resource.body
    assert read.world.eds_names == before.eds_names


def test_an_empty_directory_holds_nothing(tmp_path):
    directory = tmp_path / "new" / "cache"
    read = CacheFiles(directory).read()
    assert (read.world, read.faults) == (None, ())
    assert stat.S_IMODE(directory.stat().st_mode) & 0o007 == 0


def test_a_directory_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="cache directory"):
        CacheFiles(tmp_path / "file" / "cache")


@conformance("70")
def test_70_each_file_is_written_beside_synced_renamed_and_its_directory_synced(tmp_path):
    disk = WatchedDisk()
    CacheFiles(tmp_path, disk).write(world())
    *files, rename, last = disk.done
    assert rename == ("rename", f".{MANIFEST}.new", MANIFEST)  # what puts the set in force is last
    assert last == ("sync", tmp_path.name)
    writes = [done[1] for done in files if done[0] == "write"]
    for written in writes:
        target = written.removeprefix(".").removesuffix(".new")
        at = disk.done.index(("write", written))
        assert disk.done[at + 1] == ("rename", written, target)
        assert ("sync", tmp_path.name) in disk.done[at + 2 :]
    assert len(writes) == 8  # seven types and the manifest
    before_manifest = disk.done[: disk.done.index(("write", f".{MANIFEST}.new"))]
    assert before_manifest[-1] == ("sync", tmp_path.name)


@conformance("70")
def test_70_only_what_changed_is_written_and_the_set_before_is_kept(tmp_path):
    CacheFiles(tmp_path).write(world())
    disk = WatchedDisk()
    CacheFiles(tmp_path, disk).write(changed_world())
    written = [done[1].split(".")[1] for done in disk.done if done[0] == "write"]
    assert written == ["endpoints", "manifest", "manifest"]
    assert file_of(tmp_path, ENDPOINT) != file_of(tmp_path, ENDPOINT, PREVIOUS)
    assert file_of(tmp_path, CLUSTER) == file_of(tmp_path, CLUSTER, PREVIOUS)
    CacheFiles(tmp_path).write(world("edge"))
    names = {path.name.split(".")[0] for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) <= 2 * 8  # what no manifest names is gone
    assert "endpoints" in names
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o640 for path in tmp_path.iterdir())


@conformance("70")
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.write_bytes(b""), id="emptied"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-40]), id="cut"),
        pytest.param(lambda path: path.write_bytes(b"{}"), id="other JSON"),
        pytest.param(lambda path: path.unlink(), id="gone"),
    ],
)
@pytest.mark.parametrize("what", [ENDPOINT, MANIFEST])
def test_70_a_bad_file_is_told_and_the_last_good_set_stays(tmp_path, spoil, what):
    files = CacheFiles(tmp_path)
    files.write(world())
    files.write(changed_world())
    spoil(tmp_path / MANIFEST if what == MANIFEST else file_of(tmp_path, ENDPOINT))
    read = CacheFiles(tmp_path).read()
    assert read.world is not None
    (fault,) = read.faults
    assert "that set is ignored" in fault
    assert versions(read.world) == versions(world())


def test_with_nothing_good_there_is_no_world_and_every_fault_is_told(tmp_path):
    files = CacheFiles(tmp_path)
    files.write(world())
    files.write(changed_world())
    file_of(tmp_path, CLUSTER).write_bytes(b"not what it was")
    read = files.read()
    assert read.world is None
    assert len(read.faults) == 2
    files.write(world())  # and the next good set is in force again
    assert files.read().world is not None


def test_a_set_that_is_bad_does_not_become_the_previous_one(tmp_path):
    files = CacheFiles(tmp_path)
    files.write(world())
    files.write(changed_world())
    good = (tmp_path / PREVIOUS).read_bytes()
    file_of(tmp_path, ENDPOINT).write_bytes(b"decayed")
    files.write(world("edge"))
    assert (tmp_path / PREVIOUS).read_bytes() == good


@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_full_disk_leaves_the_set_in_force(tmp_path, room):
    CacheFiles(tmp_path).write(world())
    with pytest.raises(OSError, match="No space"):
        CacheFiles(tmp_path, FullDisk(room)).write(world("edge"))
    read = CacheFiles(tmp_path).read()
    assert read.world is not None
    assert versions(read.world) == versions(world())


@pytest.mark.parametrize(
    "manifest",
    [b"[]", b'{"made.up": "x.json"}', json.dumps({CLUSTER: "../x.json"}).encode(), b'{"a": 1}'],
)
def test_a_manifest_that_is_none_is_refused(tmp_path, manifest):
    (tmp_path / MANIFEST).write_bytes(manifest)
    read = CacheFiles(tmp_path).read()
    assert read.world is None
    assert len(read.faults) == 1
