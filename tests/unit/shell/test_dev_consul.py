"""The command line of `up`'s own Consul, for old and new versions."""

from pathlib import Path

import pytest

from control_plane.cli.dev_consul import consul_argv, parse_version
from control_plane.cli.ports import free_ports, is_free
from control_plane.errors import WattmeshError


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param("Consul v1.8.7\nProtocol 2 ...", (1, 8), id="old"),
        pytest.param("Consul v1.21.5\nRevision 1", (1, 21), id="new"),
        pytest.param("Consul 1.8.7+dfsg1", (1, 8), id="Debian's"),
    ],
)
def test_version(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version


def test_something_else_on_path_is_no_consul() -> None:
    with pytest.raises(WattmeshError, match="expected a version"):
        parse_version("usage: consul [-h]")


@pytest.mark.parametrize(("version", "known"), [((1, 8), False), ((1, 14), True)])
def test_a_flag_is_given_to_versions_that_know_it(version: tuple[int, int], known: bool) -> None:
    assert (
        "-grpc-tls-port" in consul_argv("consul", version, [1, 2, 3, 4], Path("/r/consul.pid"))
    ) is known


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8
    assert all(is_free("127.0.0.1", port) for port in ports)
