"""Free TCP ports on the loopback interface, for meshes that live on one machine.

Ports below the usual ephemeral range are tried, so that no outgoing connection takes one between
our look and its use.
"""

import itertools
import random
import socket

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


def _binds(host: str, port: int, kind: socket.SocketKind) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, kind) as probe:
        if kind == socket.SOCK_STREAM:
            # As Envoy does: connections of a former listener do not keep the port taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
