"""Certificates on disk for tests: a small CA, and what it gives to a host."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from control_plane.mtls.authority_files import Authority, init_authority, issue_files
from control_plane.mtls.files import TlsFiles
from control_plane.mtls.spiffe import make_identity

TRUST_DOMAIN = "mesh.test"


def new_authority(directory: Path) -> Authority:
    """Make a CA that is good for a day."""
    return init_authority(
        directory, TRUST_DOMAIN, now=datetime.now(UTC), lifetime=timedelta(days=1)
    )


def give(
    authority: Authority, role: str, workload_id: str, out: Path, *, minutes: float = 600
) -> TlsFiles:
    """Issue a certificate and return where it lies."""
    issue_files(
        authority,
        make_identity(authority.trust_domain, role, workload_id),
        out,
        now=datetime.now(UTC),
        lifetime=timedelta(minutes=minutes),
    )
    return TlsFiles.of_directory(out)
