"""Certificates as rows for people and programs."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509

from control_plane.mtls.authority import CertificateError, identity_of, parse_certificates
from control_plane.mtls.spiffe import IdentityError


def certificate_rows(files: Sequence[Path], *, now: datetime) -> list[dict[str, str]]:
    """Return one row for each certificate of the files. Raise CertificateError for all."""
    rows, faults = [], []
    for path in files:
        try:
            certificates = parse_certificates(path.read_bytes())
        except (CertificateError, OSError) as error:
            faults.append(f"{path}: {error.strerror if isinstance(error, OSError) else error}")
            continue
        rows += [_row(path, certificate, now) for certificate in certificates]
    if faults:
        raise CertificateError("; ".join(faults))
    return rows


def _row(path: Path, certificate: x509.Certificate, now: datetime) -> dict[str, str]:
    ends_at = certificate.not_valid_after_utc
    return {
        "file": str(path),
        "for": _holder(certificate),
        "signed by": certificate.issuer.rfc4514_string(),
        "until": f"{ends_at:%Y-%m-%dT%H:%M:%SZ}",
        "state": "over" if ends_at <= now else "good",
    }


def _holder(certificate: x509.Certificate) -> str:
    try:
        return str(identity_of(certificate))
    except IdentityError:
        return certificate.subject.rfc4514_string()
