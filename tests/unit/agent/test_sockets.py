"""Whose path it is: leftovers go, everything else stays untouched."""

import grp
import os
import socket
import stat

import pytest

from engines.sockets import (
    ENGINE_UMASK,
    SocketError,
    claim_socket,
    is_listening,
    make_socket_directory,
    release_socket,
    restrict_socket,
)


def listen(path):
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)
    return server


def test_a_free_path_is_fine(short_tmp_path):
    claim_socket(str(short_tmp_path / "e.sock"))


@pytest.mark.case("A2")
def test_a2_a_a_leftover_is_removed(short_tmp_path):
    path = short_tmp_path / "e.sock"
    listen(path).close()
    assert path.exists()
    assert not is_listening(str(path))
    claim_socket(str(path))
    assert not path.exists()


@pytest.mark.case("A2")
def test_a2_b_a_live_engine_keeps_its_socket(short_tmp_path):
    path = short_tmp_path / "e.sock"
    with listen(path):
        with pytest.raises(SocketError, match="live server"):
            claim_socket(str(path))
        assert is_listening(str(path))


def test_a_server_with_a_full_queue_is_alive(short_tmp_path):
    path = short_tmp_path / "e.sock"
    with listen(path):
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(str(path))
        assert is_listening(str(path))
        for client in waiting:
            client.close()


@pytest.mark.case("A2")
@pytest.mark.parametrize(
    "kind", ["c regular file", "d symbolic link", "directory", "dangling link"]
)
def test_a2_c_d_what_is_no_socket_is_left_untouched(short_tmp_path, kind):
    path, target = short_tmp_path / "e.sock", short_tmp_path / "target"
    if kind == "c regular file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    else:
        if kind == "d symbolic link":
            listen(target).close()  # even to a leftover: a link is not ours to follow
        path.symlink_to(target)
    before = os.lstat(path)
    with pytest.raises(SocketError, match="left untouched"):
        claim_socket(str(path))
    assert os.lstat(path) == before


@pytest.mark.case("A1")
@pytest.mark.parametrize("size", [107, 108])
def test_a1_the_kernels_limit(size):
    path = "/tmp/" + "x" * (size - 5)
    if size == 107:
        claim_socket(path)
    else:
        with pytest.raises(SocketError, match="108"):
            claim_socket(path)


def test_release_is_idempotent(short_tmp_path):
    path = short_tmp_path / "e.sock"
    listen(path).close()
    release_socket(str(path))
    release_socket(str(path))
    assert not path.exists()


def test_sockets_in_the_directory_are_for_owner_and_group(short_tmp_path):
    group = grp.getgrgid(os.getgid()).gr_name
    make_socket_directory(str(short_tmp_path / "run"), group)
    mode = (short_tmp_path / "run").stat().st_mode
    assert mode & stat.S_ISGID
    assert mode & 0o777 == 0o750
    old = os.umask(ENGINE_UMASK)
    try:
        listen(short_tmp_path / "run" / "e.sock").close()
    finally:
        os.umask(old)
    path = short_tmp_path / "run" / "e.sock"
    assert path.stat().st_mode & 0o007 == 0
    restrict_socket(str(path))
    assert path.stat().st_mode & 0o777 == 0o660
