"""A server's certificate, key and CA bundle, read together and checked against one another.

They rotate by rename, and not in one instant: a set that does not fit together is one half of a
rotation, so the last good one stays in force and the next look decides.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

from cryptography import x509

from control_plane.errors import InputError, Problem
from control_plane.mtls.authority import (
    CertificateError,
    identity_of,
    is_key_of,
    parse_certificates,
    parse_private_key,
)
from control_plane.mtls.spiffe import Identity, IdentityError

Value = TypeVar("Value")
Report = Callable[[Path, str, str], None]  # file, what it is, what was expected


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where they lie."""

    certificate: Path  # PEM, leaf first
    key: Path
    authorities: Path  # PEM, every CA whose certificates are good

    @classmethod
    def of_directory(cls, directory: Path) -> "TlsFiles":
        """Return the files of a directory under the names that `wattmesh ca issue` gives them."""
        return cls(
            certificate=directory / "tls.crt",
            key=directory / "tls.key",
            authorities=directory / "ca.crt",
        )

    @property
    def all(self) -> tuple[Path, Path, Path]:
        """The three paths."""
        return self.certificate, self.key, self.authorities


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsMaterial:
    """What they hold, in PEM, and who it makes us."""

    certificate: bytes
    key: bytes
    authorities: bytes
    identity: Identity
    ends_at: datetime  # of the certificate

    def __repr__(self) -> str:
        return f"TlsMaterial({self.identity}, ends_at={self.ends_at:%Y-%m-%d})"  # never the key


def read_tls(files: TlsFiles, *, now: datetime) -> TlsMaterial:
    """Return what the files hold. Raise InputError with everything that is wrong with them."""
    problems: list[Problem] = []

    def report(path: Path, value: str, expected: str) -> None:
        problems.append(
            Problem(
                source=str(path),
                path="file",
                value=value,
                expected=expected,
                meanwhile="the last good certificate stays in force; without one nothing starts",
            )
        )

    certificate = _take(files.certificate, parse_certificates, report)
    key = _take(files.key, parse_private_key, report)
    authorities = _take(files.authorities, parse_certificates, report)
    if certificate is not None:
        _check_leaf(certificate.value[0], files, now, report)
        if key is not None and not is_key_of(key.value, certificate.value[0]):
            report(files.key, f"not the key of {files.certificate}", "the key of that certificate")
    if problems or certificate is None or key is None or authorities is None:
        raise InputError(problems)
    return TlsMaterial(
        certificate=certificate.data,
        key=key.data,
        authorities=authorities.data,
        identity=identity_of(certificate.value[0]),
        ends_at=certificate.value[0].not_valid_after_utc,
    )


@dataclass(frozen=True, slots=True)
class _Taken(Generic[Value]):
    data: bytes
    value: Value


def _take(path: Path, parse: Callable[[bytes], Value], report: Report) -> _Taken[Value] | None:
    try:
        data = path.read_bytes()
        return _Taken(data, parse(data))
    except OSError as error:
        report(path, error.strerror or type(error).__name__, "a file that can be read")
    except CertificateError as error:
        report(path, f"one that {error}", "PEM")
    return None


def _check_leaf(leaf: x509.Certificate, files: TlsFiles, now: datetime, report: Report) -> None:
    ends_at = leaf.not_valid_after_utc
    if ends_at <= now:
        report(files.certificate, f"over since {ends_at:%Y-%m-%d}", "a certificate that is valid")
    try:
        identity_of(leaf)
    except IdentityError as error:
        report(files.certificate, f"refused: {error}", "exactly one URI SAN with a SPIFFE ID")


class TlsSource:
    """The files' last good contents. Asked at every handshake, so a look costs three `stat`s."""

    def __init__(
        self,
        files: TlsFiles,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_problems: Callable[[tuple[Problem, ...]], None] = lambda _problems: None,
    ) -> None:
        """Read the files. Raise InputError when they cannot be used."""
        self._files = files
        self._clock = clock
        self._on_problems = on_problems
        self._seen = self._look()
        self.current = read_tls(files, now=clock())

    def refresh(self) -> TlsMaterial:
        """Return what the files hold now, or held last when they were good."""
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            try:
                self.current = read_tls(self._files, now=self._clock())
            except InputError as error:
                self._on_problems(error.problems)
        return self.current

    def _look(self) -> tuple[tuple[int, ...], ...]:
        return tuple(_state(path) for path in self._files.all)


def _state(path: Path) -> tuple[int, ...]:
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
