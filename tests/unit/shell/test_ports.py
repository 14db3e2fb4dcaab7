"""Where an edge can listen, and why not."""

import socket

import pytest

from control_plane.addresses import HostPort
from control_plane.cli.ports import listen_fault
from tests.support.ports import free_ports


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        pytest.param("nohost.invalid", 1, "Envoy listens on no name", id="a name"),
        pytest.param("127.0.0.1", 0, "from 1 to 65535", id="port 0"),
        pytest.param("192.0.2.1", 15902, "an address of this host", id="of another host"),
    ],
)
def test_what_cannot_be_listened_on_is_told_apart(host: str, port: int, expected: str) -> None:
    assert expected in (listen_fault(HostPort(host, port)) or "")


def test_an_address_in_use_and_a_free_one() -> None:
    (port,) = free_ports(1)
    assert listen_fault(HostPort("127.0.0.1", port)) is None
    with socket.create_server(("127.0.0.1", port)):
        assert "in use" in (listen_fault(HostPort("127.0.0.1", port)) or "")
