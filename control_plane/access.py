"""Who may ask what of the HTTP servers: decided by how a request came, and by its certificate.

| came by | may |
|---|---|
| Unix socket | everything: the socket's mode 0660 decides who connects |
| TLS | by the role in the client certificate |
| plain TCP | read; acts are refused, since nobody knows who asks |
"""

import ssl

from aiohttp import web

from control_plane.addresses import HostPort, UnixSocket
from control_plane.mtls.files import TlsSource
from control_plane.mtls.server import http_peer, server_context
from control_plane.mtls.spiffe import Identity, IdentityError

_READS = frozenset({"GET", "HEAD"})
_FOR_ALL = frozenset({"/ready", "/metrics"})  # of our own certificates
_READERS = frozenset({"control-plane", "monitor", "operator"})
_ACTORS = frozenset({"operator"})


def context_of(address: UnixSocket | HostPort, tls: TlsSource | None) -> ssl.SSLContext | None:
    """Return the context of a server at an address; None where it speaks plain HTTP."""
    return None if tls is None or isinstance(address, UnixSocket) else server_context(tls)


def peer_of(request: web.Request, tls: TlsSource) -> Identity:
    """Return who asks over TLS. Raise IdentityError when it is nobody of our trust domain."""
    transport = request.transport
    peer = http_peer(transport.get_extra_info("peercert") if transport is not None else None)
    ours = tls.current.identity.trust_domain
    if peer.trust_domain != ours:
        raise IdentityError(f"{peer} is not of the trust domain {ours}")
    return peer


def check_admin(
    request: web.Request, address: UnixSocket | HostPort, tls: TlsSource | None
) -> None:
    """Raise IdentityError when a request to the admin API must not be answered."""
    if isinstance(address, UnixSocket):
        return
    reads = request.method in _READS
    if tls is None:
        if not reads:
            raise IdentityError("actions need the Unix socket, or TLS and the role operator")
        return
    peer = peer_of(request, tls)
    allowed = _READERS if reads else _ACTORS
    if peer.role not in allowed and not (reads and request.path in _FOR_ALL):
        raise IdentityError(f"{peer} may not: this needs the role {' or '.join(sorted(allowed))}")
