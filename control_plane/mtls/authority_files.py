"""The small CA in a directory, and what it gives to hosts.

    ca.crt     every CA that is trusted; during a rotation two
    ca.key     the key that signs, of one of those (mode 0600)
    next.key   between the first and the second step of a rotation

What a host gets: tls.key, tls.crt and ca.crt, each written beside, synced and moved into place, the
key first. Which step a rotation is in follows from the files alone.
"""

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, get_args

from cryptography import x509

from control_plane.errors import WattmeshError
from control_plane.mtls.authority import (
    CertificateError,
    Issuer,
    is_key_of,
    issue,
    key_pem,
    make_authority,
    parse_certificates,
    parse_signing_key,
    pem,
)
from control_plane.mtls.spiffe import Identity, make_identity

Step = Literal["begin", "switch", "finish"]
STEPS: tuple[Step, ...] = get_args(Step)

_PRIVATE, _GROUP, _PUBLIC = 0o600, 0o640, 0o644
_BUNDLE, _KEY, _NEXT_KEY = "ca.crt", "ca.key", "next.key"


class AuthorityError(WattmeshError):
    """A CA's directory that is not in the state that a command needs."""


@dataclass(frozen=True, slots=True)
class Authority:
    """What a CA's directory holds."""

    directory: Path
    trusted: tuple[x509.Certificate, ...]
    issuer: Issuer
    trust_domain: str


def init_authority(
    directory: Path, trust_domain: str, *, now: datetime, lifetime: timedelta
) -> Authority:
    """Make a CA in a directory that holds none yet. Raise AuthorityError or IdentityError."""
    make_identity(trust_domain, "operator", "check")
    for name in (_BUNDLE, _KEY):
        if (directory / name).exists():
            raise AuthorityError(f"{directory / name}: exists already; nothing was changed")
    directory.mkdir(parents=True, exist_ok=True)
    made = make_authority(trust_domain, now=now, lifetime=lifetime)
    replace_file(directory / _KEY, key_pem(made.key), _PRIVATE)
    replace_file(directory / _BUNDLE, pem([made.certificate]), _PUBLIC)
    return read_authority(directory)


def read_authority(directory: Path) -> Authority:
    """Return the CA of a directory. Raise AuthorityError when it holds none that can sign."""
    bundle, key_file = directory / _BUNDLE, directory / _KEY
    try:
        trusted = parse_certificates(bundle.read_bytes())
        key = parse_signing_key(key_file.read_bytes())
        signing = [item for item in trusted if is_key_of(key, item)]
    except OSError as error:
        raise AuthorityError(
            f"{error.filename}: {error.strerror}; expected a CA made by `wattmesh ca init`"
        ) from error
    except CertificateError as error:
        raise AuthorityError(f"{directory}: {error}") from error
    if not signing:
        raise AuthorityError(f"{key_file}: is the key of no certificate in {bundle}")
    organization = signing[0].subject.get_attributes_for_oid(x509.NameOID.ORGANIZATION_NAME)
    if not organization:
        raise AuthorityError(
            f"{bundle}: names no trust domain, expected a CA of `wattmesh ca init`"
        )
    return Authority(directory, trusted, Issuer(signing[0], key), str(organization[0].value))


def issue_files(
    authority: Authority,
    identity: Identity,
    out: Path,
    *,
    now: datetime,
    lifetime: timedelta,
    names: Sequence[str] = (),
    group: str | None = None,
) -> None:
    """Write tls.key, tls.crt and ca.crt for a host. With a group, its members may read the key."""
    certificate, key = issue(authority.issuer, identity, now=now, lifetime=lifetime, names=names)
    out.mkdir(parents=True, exist_ok=True)
    mode = _GROUP if group else _PRIVATE
    replace_file(out / "tls.key", key, mode, group)
    replace_file(out / "tls.crt", certificate, _PUBLIC)
    replace_file(out / _BUNDLE, pem(authority.trusted), _PUBLIC)


def rotate(authority: Authority, step: Step, *, now: datetime, lifetime: timedelta) -> Authority:
    """Take one step of a rotation and return the CA after it. Raise AuthorityError out of order.

    begin: a new CA is trusted beside the old. switch: the new one signs. finish: the old one is
    trusted no more. Before each next step, ca.crt has to be everywhere (and before `finish` new
    certificates, too).
    """
    directory, current = authority.directory, authority.issuer
    next_key = directory / _NEXT_KEY
    if step == "begin":
        if len(authority.trusted) > 1:
            raise AuthorityError(f"{directory}: a rotation has begun already")
        made = make_authority(authority.trust_domain, now=now, lifetime=lifetime)
        replace_file(next_key, key_pem(made.key), _PRIVATE)
        bundle = pem([current.certificate, made.certificate])
        replace_file(directory / _BUNDLE, bundle, _PUBLIC)
    elif step == "switch":
        if not next_key.exists():
            raise AuthorityError(f"{directory}: no rotation has begun; expected `rotate begin`")
        next_key.replace(directory / _KEY)
        sync_directory(directory)
    else:
        if next_key.exists() or len(authority.trusted) == 1:
            raise AuthorityError(f"{directory}: nothing to finish; expected after `rotate switch`")
        replace_file(directory / _BUNDLE, pem([current.certificate]), _PUBLIC)
    return read_authority(directory)


def replace_file(path: Path, data: bytes, mode: int, group: str | None = None) -> None:
    """Write a file beside its place, sync it, and move it there: readers see the old or the new."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    try:
        opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
        with os.fdopen(opened, "wb") as file:
            if group is not None:
                shutil.chown(beside, group=group)
            beside.chmod(mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except LookupError as error:
        raise AuthorityError(f"group {group!r}: {error}") from error
    finally:
        beside.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make a rename in a directory last."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot sync directories
            os.fsync(opened)
    finally:
        os.close(opened)
