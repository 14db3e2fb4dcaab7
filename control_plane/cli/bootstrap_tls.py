"""The certificate of an Envoy's bootstrap: looked at before the bootstrap is written."""

from datetime import UTC, datetime
from pathlib import Path

from control_plane.bootstrap_tls import BootstrapTls, secret_files
from control_plane.errors import WattmeshError
from control_plane.mtls.authority_files import replace_file
from control_plane.mtls.files import TlsFiles, read_tls
from control_plane.mtls.spiffe import IdentityError, check_asks_for_itself

_MODE = 0o644  # they hold names of files


def prepare_tls(directory: Path, *, role: str, node_id: str) -> BootstrapTls:
    """Write the files that Envoy reads its secrets from, and return what its bootstrap needs.

    Raise InputError for files that cannot be used, and WattmeshError for a certificate that is of
    somebody else: its control plane would refuse it.
    """
    directory = directory.absolute()
    identity = read_tls(TlsFiles.of_directory(directory), now=datetime.now(UTC)).identity
    try:
        check_asks_for_itself(identity, node_id, role)
    except IdentityError as error:
        raise WattmeshError(f"{directory / 'tls.crt'}: {error}") from error
    for path, text in secret_files(directory).items():
        replace_file(path, text.encode(), _MODE)
    return BootstrapTls(directory, identity.trust_domain)
