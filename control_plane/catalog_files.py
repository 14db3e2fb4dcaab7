"""Files that are followed by rename: a recorded catalog, and the policy.

Written beside and moved into place, a file is always whole. One that cannot be read or used leaves
the last good one in force; its problems are told once, and again only when the file changes.
A catalog file is an operator's word, so an emptied one is believed at once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from control_plane.catalog import CatalogParser
from control_plane.errors import InputError, Problem
from control_plane.guard import CatalogRead
from control_plane.policy import Policy, parse_policy
from control_plane.unexpected import unexpected

POLL_S = 0.5
_LAST_GOOD = "the last good one stays in force"
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRead(Generic[Value]):
    """What a file says now: a value, or why it has none."""

    value: Value | None
    problems: tuple[Problem, ...] = ()
    error: Exception | None = None  # that nobody expected of any file


def read_file(path: Path, parse: Callable[[bytes], Value]) -> Value:
    """Return the parsed file. Raise InputError when it cannot be read or used."""
    try:
        data = path.read_bytes()
    except OSError as error:
        problem = Problem(
            source=str(path),
            path="file",
            value=error.strerror or type(error).__name__,
            expected="a file that can be read",
            meanwhile=_LAST_GOOD,
        )
        raise InputError([problem]) from error
    return parse(data)


async def follow_file(
    path: Path, parse: Callable[[bytes], Value], *, poll_s: float = POLL_S
) -> AsyncIterator[FileRead[Value]]:
    """Yield the file's first read and one read for every change of it, until cancelled."""
    last: object = None
    while True:
        identity = await asyncio.to_thread(_identity, path)
        if identity != last:
            last = identity
            yield await asyncio.to_thread(_read, path, parse)
        await asyncio.sleep(poll_s)


async def follow_catalog_file(
    path: Path, *, poll_s: float = POLL_S
) -> AsyncIterator[FileRead[CatalogRead]]:
    """Yield the catalogs of a file."""
    reads = 0
    parser = CatalogParser(str(path))

    def parse(data: bytes) -> CatalogRead:
        return CatalogRead(catalog=parser.parse(data), index=reads)

    async for read in follow_file(path, parse, poll_s=poll_s):
        reads += 1
        yield read


def follow_policy_file(path: Path, *, poll_s: float = POLL_S) -> AsyncIterator[FileRead[Policy]]:
    """Yield the policies of a file."""

    def parse(data: bytes) -> Policy:
        return parse_policy(data, source=str(path))

    return follow_file(path, parse, poll_s=poll_s)


def _identity(path: Path) -> tuple[int, ...]:
    """Return what changes when the file does; one value for every kind of absence."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size


def _read(path: Path, parse: Callable[[bytes], Value]) -> FileRead[Value]:
    try:
        return FileRead(value=read_file(path, parse))
    except InputError as error:
        return FileRead(value=None, problems=error.problems)
    except Exception as error:  # noqa: BLE001 whatever a file holds, whoever follows it goes on
        problem = unexpected(str(path), error, meanwhile=_LAST_GOOD)
        return FileRead(value=None, problems=(problem,), error=error)
