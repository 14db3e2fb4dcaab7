"""What servers are given, and who a peer is.

Every TLS server of ours demands a client certificate of our CAs and looks at its SPIFFE ID; the
files are looked at again at each handshake, so that a rotation needs no restart.
"""

import ssl
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import grpc

from control_plane.mtls.files import TlsMaterial, TlsSource
from control_plane.mtls.spiffe import Identity, IdentityError, Role, parse_identity, role_prefix


def grpc_credentials(source: TlsSource) -> Any:
    """Return credentials of a gRPC server that follow the source."""
    given = source.current

    def renewed() -> Any | None:  # called by gRPC before every handshake, from its own thread
        nonlocal given
        material = source.refresh()
        if material is given:
            return None
        given = material
        return _configuration(material)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(given), renewed, require_client_authentication=True
    )


def _configuration(material: TlsMaterial) -> Any:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], material.authorities
    )


def grpc_peer(auth_context: Mapping[str, Iterable[bytes]]) -> Identity | None:
    """Return who is at the other end of a gRPC call; None without TLS. Raise IdentityError."""
    if b"ssl" not in auth_context.get("transport_security_type", ()):
        return None
    uris = [uri.decode(errors="replace") for uri in auth_context.get("peer_uri", ())]
    return _the_one(uris)


def server_context(source: TlsSource) -> ssl.SSLContext:
    """Return the context of an HTTP server that follows the source.

    Clients must hold a certificate of our CAs; who they are, `http_peer` tells.
    """
    given = source.current
    context = _context(given, ssl.PROTOCOL_TLS_SERVER)
    newest = context

    def renew(connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: object) -> None:
        """Called at each handshake. A context cannot forget a CA, so a rotation makes a new one."""
        nonlocal given, newest
        material = source.refresh()
        if material is not given:
            given, newest = material, _context(material, ssl.PROTOCOL_TLS_SERVER)
        connection.context = newest

    context.sni_callback = renew
    return context


def client_context(material: TlsMaterial, role: Role) -> ssl.SSLContext:
    """Return the context of a client that talks to servers of one role of our trust domain.

    Host names are not looked at: the handshake fails unless the SPIFFE ID has that role.
    """
    prefix = role_prefix(material.identity.trust_domain, role)

    class Checked(ssl.SSLObject):
        """A connection whose handshake ends with a look at who answered."""

        def do_handshake(self) -> None:
            super().do_handshake()
            try:
                peer = str(http_peer(self.getpeercert()))
            except IdentityError as error:
                raise ssl.SSLCertVerificationError(str(error)) from error
            if not peer.startswith(prefix):
                raise ssl.SSLCertVerificationError(f"the server is {peer}, expected {prefix}…")

    context = _context(material, ssl.PROTOCOL_TLS_CLIENT)
    context.sslobject_class = Checked
    return context


class TlsClient:
    """Contexts of a client that talks to one role; made again when our own files changed."""

    def __init__(self, source: TlsSource, role: Role) -> None:
        self._source = source
        self._role: Role = role
        self._given = source.current
        self._context = client_context(self._given, role)

    def context(self) -> ssl.SSLContext:
        """Return the context for a connection that is opened now."""
        material = self._source.refresh()
        if material is not self._given:
            self._given, self._context = material, client_context(material, self._role)
        return self._context


def _context(material: TlsMaterial, protocol: int) -> ssl.SSLContext:
    """Python's ssl takes a certificate from files only; ours are private and gone at once."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    with tempfile.TemporaryDirectory(prefix="wattmesh-tls-") as folder:  # mode 0700
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        certificate.write_bytes(material.certificate)
        key.write_bytes(material.key)
        context.load_cert_chain(certificate, key)
    context.load_verify_locations(cadata=material.authorities.decode())
    return context


def http_peer(certificate: Mapping[str, Any] | None) -> Identity:
    """Return who a peer certificate, as `ssl` shows it, is for. Raise IdentityError."""
    names = (certificate or {}).get("subjectAltName", ())
    return _the_one([value for kind, value in names if kind == "URI"])


def _the_one(uris: list[str]) -> Identity:
    if len(uris) != 1:
        raise IdentityError(f"the certificate has {len(uris)} URI SANs, expected one SPIFFE ID")
    return parse_identity(uris[0])
