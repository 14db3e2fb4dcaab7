"""Free TCP ports on the loopback interface, for meshes that live on one machine.

Ports below the usual ephemeral range are tried, so that no outgoing connection takes one between
our look and its use.
"""

import errno
import itertools
import random
import socket

from control_plane.addresses import HostPort
from control_plane.errors import WattmeshError

_RANGE = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return this many different ports on which nobody listens at 127.0.0.1 now."""
    candidates = random.sample(_RANGE, 1_000)  # only to keep two meshes apart
    kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM)  # Consul's gossip needs both
    free = (port for port in candidates if all(_binds("127.0.0.1", port, kind) for kind in kinds))
    found = list(itertools.islice(free, count))
    if len(found) < count:
        raise WattmeshError(f"only {len(found)} of {count} free ports found on 127.0.0.1")
    return found


def is_free(host: str, port: int) -> bool:
    """Whether a TCP server can listen there now."""
    return _binds(host, port, socket.SOCK_STREAM)


def listen_fault(address: HostPort) -> str | None:
    """Return why no Envoy can listen at an IP address and port now, or None when one can."""
    if not address.is_ip:
        return "expected an IP address of this host: Envoy listens on no name"
    if address.port == 0:
        return "expected a port from 1 to 65535"
    error = _bind_error(address.host, address.port, socket.SOCK_STREAM)
    if error is None:
        return None
    reasons = {
        errno.EADDRINUSE: "expected a free address, it is in use",
        errno.EADDRNOTAVAIL: "expected an address of this host",
        errno.EACCES: "expected a port that this user may listen on",
    }
    return reasons.get(error.errno or 0, f"it cannot be listened on: {error.strerror or error}")


def _binds(host: str, port: int, kind: socket.SocketKind) -> bool:
    return _bind_error(host, port, kind) is None


def _bind_error(host: str, port: int, kind: socket.SocketKind) -> OSError | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, kind) as probe:
        if kind == socket.SOCK_STREAM:
            # As Envoy does: connections of a former listener do not keep the port taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None
