"""Addresses as operators write them: "unix:/run/wattmesh/xds.sock" or "127.0.0.1:18000"."""

import ipaddress
from dataclasses import dataclass

from control_plane.errors import WattmeshError, shown
from control_plane.metadata import socket_path_fault


class AddressError(WattmeshError):
    """An address that cannot be listened on or connected to."""


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A Unix domain socket."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class HostPort:
    """A TCP address."""

    host: str
    port: int

    @property
    def is_ip(self) -> bool:
        """Whether the host is an IP address, not a name."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can reach it."""
        return self.host == "localhost" or (
            self.is_ip and ipaddress.ip_address(self.host).is_loopback
        )

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> UnixSocket | HostPort:
    """Return the address. Raise AddressError, saying what was expected."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        fault = socket_path_fault(path)
        if fault:
            raise AddressError(f"address {shown(text)}: expected {fault}")
        return UnixSocket(path)
    return parse_host_port(text)


def parse_host_port(text: str) -> HostPort:
    """Return the TCP address. Raise AddressError, saying what was expected."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdecimal() and 0 <= int(port) < 65536):
        raise AddressError(f"address {shown(text)}: expected unix:PATH or HOST:PORT")
    return HostPort(host, int(port))
