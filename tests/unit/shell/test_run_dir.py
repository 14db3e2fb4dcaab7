"""The run directory: ours alone, one mesh at a time."""

import os
import stat
from pathlib import Path

import pytest

from control_plane.cli.run_dir import (
    RunDirError,
    clean_run_dir,
    default_admin_address,
    default_run_dir,
    hold_run_dir,
    make_run_dir,
)


def test_it_is_made_for_its_owner_only(tmp_path: Path) -> None:
    path = make_run_dir(tmp_path / "deep" / "run")
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    path.chmod(0o755)
    make_run_dir(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a directory of somebody else")
def test_somebody_elses_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    os.chown(path, 12345, 12345)
    with pytest.raises(RunDirError, match="belongs to user 12345"):
        make_run_dir(path)


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "target")
    with pytest.raises(RunDirError, match="no directory"):
        make_run_dir(tmp_path / "run")


def test_a_directory_with_files_of_somebody_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "thesis.txt").write_text("years of work")
    tmp_path.chmod(0o755)
    with pytest.raises(RunDirError, match="holds 'photos' and was made by no mesh"):
        make_run_dir(tmp_path)
    assert {item.name for item in tmp_path.iterdir()} == {"photos", "thesis.txt"}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_what_a_mesh_left_is_removed_but_its_logs(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    path = make_run_dir(tmp_path / "run")
    (path / "logs").mkdir()
    (path / "gpu-1").mkdir()
    (path / "edge.envoy.yaml").touch()
    (path / "link").symlink_to(outside)
    assert make_run_dir(path) == path  # a killed mesh's directory is taken over
    clean_run_dir(path)
    assert {item.name for item in path.iterdir()} == {".wattmesh-run-dir", "logs"}
    assert (outside / "kept").exists()
    assert make_run_dir(path) == path


def test_a_second_mesh_is_kept_out_until_the_first_has_ended(tmp_path: Path) -> None:
    with hold_run_dir(tmp_path):
        with pytest.raises(RunDirError, match=f"process {os.getpid()}"), hold_run_dir(tmp_path):
            pass
        assert (tmp_path / "lock").exists()
    with hold_run_dir(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_left_by_a_killed_mesh_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("1\n")
    with hold_run_dir(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_defaults_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.delenv("WATTMESH_ADMIN_ADDRESS", raising=False)
    assert default_run_dir() == Path(f"/run/user/7/wattmesh-{os.getuid()}")
    assert default_admin_address() == f"unix:/run/user/7/wattmesh-{os.getuid()}/admin.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_run_dir() == Path(f"/tmp/wattmesh-{os.getuid()}")
    monkeypatch.setenv("WATTMESH_ADMIN_ADDRESS", "127.0.0.1:1")
    assert default_admin_address() == "127.0.0.1:1"
