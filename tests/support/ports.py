"""Free TCP ports of the loopback interface.

A port is free when it is handed out, not for ever; so all ports of one mesh are taken at once and
used soon after. Ports below the ephemeral range are preferred: no outgoing connection takes one.
"""

import random
import socket

_FIRST, _LAST = 20_000, 32_000


def free_ports(count: int) -> list[int]:
    """Return this many different TCP ports that nobody on 127.0.0.1 listens on now."""
    found: list[int] = []
    candidates = random.sample(range(_FIRST, _LAST), 2_000)
    for port in candidates:
        if len(found) == count:
            break
        if _is_free(port):
            found.append(port)
    if len(found) < count:
        raise RuntimeError(f"only {len(found)} of {count} free ports in {_FIRST}-{_LAST}")
    return found


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):  # Consul's gossip takes both
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
