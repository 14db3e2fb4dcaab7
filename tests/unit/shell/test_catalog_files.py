"""Files followed by rename: good ones apply, bad ones leave the last good one in force."""

import asyncio
import os
from pathlib import Path

import pytest

from control_plane.catalog_files import (
    FileRead,
    follow_catalog_file,
    follow_file,
    follow_policy_file,
    read_file,
)
from control_plane.errors import InputError
from control_plane.policy import Policy
from tests.support.consul_json import consul_answer, consul_entry
from tests.support.eventually import eventually

POLL_S = 0.01


def replace_file(path: Path, data: bytes) -> None:
    """Write beside and rename, as an operator's tool does."""
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.rename(path)


async def test_a_file_is_followed_by_rename(tmp_path: Path) -> None:
    path, reads = tmp_path / "policy.yaml", list[FileRead[Policy]]()
    path.write_bytes(b"retry_after: 3s")

    async def follow() -> None:
        async for read in follow_policy_file(path, poll_s=POLL_S):
            reads.append(read)

    task = asyncio.create_task(follow())
    await eventually(lambda: len(reads) == 1)
    replace_file(path, b"retry_after: 4s")
    await eventually(lambda: len(reads) == 2)
    replace_file(path, b"retry_after: soon\nno_such: 1")
    await eventually(lambda: len(reads) == 3)
    path.unlink()
    await eventually(lambda: len(reads) == 4)
    await asyncio.sleep(5 * POLL_S)  # what stays bad is told once
    replace_file(path, b"retry_after: 5s")
    await eventually(lambda: len(reads) == 5)
    task.cancel()
    await asyncio.wait([task])
    assert [read.value.retry_after_s if read.value else None for read in reads] == [
        3,
        4,
        None,
        None,
        5,
    ]
    assert [len(read.problems) for read in reads] == [0, 0, 2, 1, 0]


async def test_a_changed_content_of_equal_size_and_time_is_seen_by_its_inode(
    tmp_path: Path,
) -> None:
    path = tmp_path / "catalog.json"
    path.write_bytes(consul_answer(consul_entry(gpu_power="100")))
    stat = path.stat()
    source = follow_catalog_file(path, poll_s=POLL_S)
    first = await anext(source)
    beside = tmp_path / "new"
    beside.write_bytes(consul_answer(consul_entry(gpu_power="300")))
    os.utime(beside, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    beside.rename(path)
    second = await anext(source)
    assert first.value is not None
    assert second.value is not None
    powers = [r.value.catalog.entries[0].metadata.gpu_power for r in (first, second) if r.value]
    assert powers == [100, 300]
    assert not second.value.reset


async def test_whatever_goes_wrong_in_reading_a_file_it_is_followed_on(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"bad")

    def parse(data: bytes) -> bytes:
        if data == b"bad":
            raise MemoryError
        return data

    source = follow_file(path, parse, poll_s=POLL_S)
    first = await anext(source)
    assert isinstance(first.error, MemoryError)
    assert "stays in force" in str(first.problems[0])
    replace_file(path, b"good")
    assert (await anext(source)).value == b"good"


def test_a_file_that_is_not_there_is_a_problem_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_file(tmp_path / "none.yaml", lambda data: data)
    (problem,) = caught.value.problems
    assert problem.source == str(tmp_path / "none.yaml")
    assert "No such file" in str(problem)
