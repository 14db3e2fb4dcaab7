"""The cache on disk: a file for each type of resource, and a manifest that names them.

A file is written beside its place, synced, renamed and its directory synced, so that it is whole
or not there; its name holds the hash of its content, so that one that decayed is known. The
manifest is replaced last, and makes a new set the one in force; the set before it stays, and is
fallen back to when a file of the newer one turns out to be bad.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from control_plane.errors import PayloadError, WattmeshError
from control_plane.lkg.codec import DocumentError, decode, encode
from control_plane.lkg.world import Recorded, make_world
from control_plane.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
    SECRET,
    Snapshot,
)

MANIFEST = "manifest.json"
PREVIOUS = "manifest.previous.json"
FILE_MODE = 0o640
_DIRECTORY_MODE = 0o750
_DIGEST_CHARS = 16
_STEMS = MappingProxyType(
    {
        RUNTIME: "runtime",
        CLUSTER: "clusters",
        ENDPOINT: "endpoints",
        EXTENSION: "extensions",
        LISTENER: "listeners",
        ROUTE: "routes",
        SECRET: "secrets",
    }
)

Manifest = Mapping[str, str]  # type URL → file name


class CacheError(WattmeshError):
    """A recorded set that cannot be used."""


class Disk(Protocol):
    """What is done to files, in the order in which it is done."""

    def write_synced(self, path: Path, data: bytes) -> None:
        """Write a new file with FILE_MODE; return when the medium has it."""

    def rename(self, source: Path, target: Path) -> None:
        """Put a file in another's place, within one directory."""

    def sync_directory(self, path: Path) -> None:
        """Return when the medium has what was renamed in a directory."""


class LocalDisk:
    """This machine's file system."""

    def write_synced(self, path: Path, data: bytes) -> None:
        """Write a new file, whatever an interrupted run left in its place."""
        path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, FILE_MODE), "wb") as file:
            os.fchmod(file.fileno(), FILE_MODE)  # the umask may have taken the group's part
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """Replace the target in one step."""
        source.replace(target)

    def sync_directory(self, path: Path) -> None:
        """Sync the directory's own entries."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class CacheRead:
    """What a cache holds: the last set that is good, and what was wrong with newer ones."""

    world: Snapshot | None
    faults: tuple[str, ...] = ()


class CacheFiles:
    """One cache's directory, made when it is not there. Blocks: call it off the event loop.

    Raise CacheError when it can be neither used nor made.
    """

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self._directory = directory
        self._disk = disk or LocalDisk()
        try:
            directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise CacheError(f"cache directory {directory}: {error.strerror}") from error

    def read(self) -> CacheRead:
        """Return the newest good set; no world when there is none."""
        faults: list[str] = []
        has_previous = (self._directory / PREVIOUS).exists()
        if not (has_previous or (self._directory / MANIFEST).exists()):
            return CacheRead(None)
        for name in (MANIFEST, PREVIOUS) if has_previous else (MANIFEST,):
            try:
                documents = self._documents(name)
                recorded = [
                    item
                    for type_url, data in documents.items()
                    for item in self._decoded(type_url, data)
                ]
                return CacheRead(make_world(recorded), tuple(faults))
            except (CacheError, PayloadError) as error:
                faults.append(f"{self._directory / name}: {error}; that set is ignored")
        return CacheRead(None, tuple(faults))

    def write(self, world: Snapshot) -> None:
        """Make a set the one in force. Raise OSError when it cannot be written: nothing changes."""
        documents = {type_url: encode(world, type_url) for type_url in _STEMS}
        manifest = {
            type_url: f"{_STEMS[type_url]}.{_digest(data)}.json"
            for type_url, data in documents.items()
        }
        for type_url, data in documents.items():
            self._put(manifest[type_url], data)
        self._disk.sync_directory(self._directory)
        self._keep_previous(manifest)
        self._put(MANIFEST, _to_json(manifest))
        self._disk.sync_directory(self._directory)
        self._prune()

    def _put(self, name: str, data: bytes) -> None:
        target = self._directory / name
        if _content(target) == data:
            return
        beside = target.with_name(f".{name}.new")
        self._disk.write_synced(beside, data)
        self._disk.rename(beside, target)

    def _keep_previous(self, manifest: Manifest) -> None:
        """Make the set in force the previous one, unless it is the same, or bad."""
        try:
            current = self._manifest(MANIFEST)
            self._documents(MANIFEST)
        except CacheError:
            return
        if current != manifest:
            self._put(PREVIOUS, _to_json(current))

    def _prune(self) -> None:
        """Remove what neither manifest names."""
        named = {MANIFEST, PREVIOUS}
        for name in (MANIFEST, PREVIOUS):
            try:
                named |= set(self._manifest(name).values())
            except CacheError:
                continue
        for stem in (*_STEMS.values(), "manifest"):
            for path in [
                *self._directory.glob(f"{stem}.*.json"),
                *self._directory.glob(f".{stem}.*.new"),
            ]:
                if path.name not in named:
                    path.unlink(missing_ok=True)

    def _manifest(self, name: str) -> Manifest:
        data = _content(self._directory / name)
        if data is None:
            raise CacheError("is missing")
        try:
            value = json.loads(data)
        except ValueError as error:
            raise CacheError(f"is no JSON ({error})") from error
        if not (
            isinstance(value, dict)
            and value.keys() <= _STEMS.keys()
            and all(isinstance(file, str) and "/" not in file for file in value.values())
        ):
            raise CacheError("names no files by type, as a manifest does")
        return value

    def _documents(self, name: str) -> dict[str, bytes]:
        """Return the content of each file of a set. Raise CacheError when one is not as written."""
        documents = {}
        for type_url, file in self._manifest(name).items():
            data = _content(self._directory / file)
            if data is None:
                raise CacheError(f"{file} is missing")
            if file != f"{_STEMS[type_url]}.{_digest(data)}.json":
                raise CacheError(f"{file} is not as it was written")
            documents[type_url] = data
        return documents

    def _decoded(self, type_url: str, data: bytes) -> tuple[Recorded, ...]:
        try:
            return decode(data, type_url)
        except DocumentError as error:
            raise CacheError(f"{_STEMS[type_url]}: {error}") from error


def _to_json(manifest: Manifest) -> bytes:
    return json.dumps(dict(manifest), indent=1, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGEST_CHARS]


def _content(path: Path) -> bytes | None:
    """Return a file's content; None when it is not there or cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None
