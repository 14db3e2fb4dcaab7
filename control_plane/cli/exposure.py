"""What may listen where: nothing leaves this host in plain text unless somebody says so."""

from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from control_plane.addresses import HostPort, UnixSocket
from control_plane.errors import WattmeshError
from control_plane.mtls.files import TlsFiles
from control_plane.plan import MeshTlsMode


def parse_tls_files(cert: Path | None, key: Path | None, ca: Path | None) -> TlsFiles | None:
    """Return the files of a server, None for none. Raise WattmeshError for a part of them."""
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        raise WattmeshError("--tls-cert, --tls-key and --tls-ca: expected all three or none")
    return TlsFiles(certificate=cert, key=key, authorities=ca)


def parse_mesh_tls(asked: str | None, tls: TlsFiles | None) -> MeshTlsMode | None:
    """Return the step of the mesh's TLS, None for plain. Raise WattmeshError without a CA."""
    if asked is None:
        return None if tls is None else "require"
    if asked == "off":
        return None
    if tls is None:
        raise WattmeshError(f"--mesh-tls {asked}: expected --tls-cert, --tls-key and --tls-ca, too")
    return next(mode for mode in get_args(MeshTlsMode) if mode == asked)


def check_exposure(
    addresses: Iterable[UnixSocket | HostPort | None],
    tls: TlsFiles | None,
    *,
    allow_plaintext: bool,
) -> None:
    """Raise WattmeshError naming every address that other hosts reach without TLS."""
    open_to_all = [
        str(address)
        for address in addresses
        if isinstance(address, HostPort) and not address.is_loopback
    ]
    if open_to_all and tls is None and not allow_plaintext:
        raise WattmeshError(
            f"{', '.join(open_to_all)}: other hosts could connect in plain text; give --tls-cert, "
            "--tls-key and --tls-ca (`wattmesh ca` makes them for a trial), use a Unix socket or "
            "a loopback address, or say --allow-plaintext"
        )
