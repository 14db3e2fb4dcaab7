"""Exceptions that nobody expected: what is in force stays, and everybody is told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from structlog.testing import capture_logs

from control_plane.catalog import parse_catalog
from control_plane.catalog_files import FileRead
from control_plane.debounce import Debounce
from control_plane.guard import CatalogRead
from control_plane.metrics import Metrics
from control_plane.policy import Policy
from control_plane.rendering import Renderer
from control_plane.service import ControlPlane
from control_plane.store import SnapshotStore
from control_plane.unexpected import UnexpectedErrors
from engines.gpu import GpuSpec, GpuTable
from tests.support.builders import GPUS
from tests.support.consul_json import consul_answer, consul_entry
from tests.support.eventually import eventually

AT_ONCE = Debounce(quiet_s=0.0, cap_s=0.0)


class BrokenTable(GpuTable):
    """A table on which one name of a GPU breaks off planning, as a fault of ours might."""

    def find(self, raw_name: str | bytes) -> GpuSpec | None:
        if raw_name == "broken":
            raise OverflowError("cannot convert float infinity to integer")
        return super().find(raw_name)


class Plane:
    """A control plane without its servers, and what it is told."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        renderer = Renderer()
        store = SnapshotStore(renderer.render, self.metrics, renderer.part, renderer.drop)
        table = BrokenTable(GPUS.specs)
        self.plane = ControlPlane(store, self.metrics, table, guarded=False, hold_s=60.0)
        self._catalogs: asyncio.Queue[CatalogRead] = asyncio.Queue()
        self._policies: asyncio.Queue[FileRead[Policy]] = asyncio.Queue()
        self._policies.put_nowait(FileRead(value=Policy()))

    def show(self, *gpus: str) -> None:
        entries = [
            consul_entry(f"n{i}.e1", port=9000 + i, gpu_model=gpu) for i, gpu in enumerate(gpus)
        ]
        catalog = parse_catalog(consul_answer(*entries), source="test")
        self._catalogs.put_nowait(CatalogRead(catalog=catalog))

    def fail_policy(self, error: Exception) -> None:
        self._policies.put_nowait(FileRead(value=None, error=error))

    def count(self, where: str) -> float:
        name, labels = "wattmesh_unexpected_errors_total", {"where": where}
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ControlPlane]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self.plane.follow_catalog(_all(self._catalogs))),
                group.create_task(self.plane.follow_policy(_all(self._policies))),
                group.create_task(self.plane.publish_changes(AT_ONCE)),
            ]
            yield self.plane
            for task in tasks:
                task.cancel()


async def _all(queue):
    while True:
        yield await queue.get()


async def test_what_breaks_planning_leaves_the_last_plan_in_force() -> None:
    told = Plane()
    with capture_logs() as logs:
        async with told.running() as plane:
            told.show("NVIDIA L4")
            await eventually(lambda: plane.plan is not None)
            before, fleet = plane.plan, plane.fleet
            told.show("NVIDIA L4", "broken")
            await eventually(lambda: told.count("plan") == 1)
            told.show("NVIDIA H200", "broken")
            await eventually(lambda: told.count("plan") == 2)
            assert (plane.plan, plane.fleet) == (before, fleet)
            (problem,) = plane.problems()
            assert "OverflowError" in str(problem)
            assert "the last good state stays in force" in str(problem)
            assert plane.not_ready() is None
            told.show("NVIDIA L4", "NVIDIA H200")
            await eventually(lambda: not plane.problems())
            assert plane.plan is not None
            assert len(plane.plan.engines) == 2
    errors = [line for line in logs if line["event"] == "unexpected error"]
    assert [line["where"] for line in errors] == ["plan"]
    assert isinstance(errors[0]["exc_info"], OverflowError)


async def test_a_first_plan_that_cannot_be_made_is_said_to_be_why_nothing_is_ready() -> None:
    told = Plane()
    async with told.running() as plane:
        told.show("broken")
        await eventually(lambda: told.count("plan") == 1)
        assert "OverflowError" in (plane.not_ready() or "")
        told.show("NVIDIA L4")
        await eventually(lambda: plane.not_ready() is None)


async def test_an_unexpected_error_of_a_policy_file_is_counted() -> None:
    told = Plane()
    async with told.running():
        told.fail_policy(MemoryError())
        await eventually(lambda: told.count("policy") == 1)


def test_each_distinct_error_is_logged_once() -> None:
    noted = UnexpectedErrors(Metrics())
    with capture_logs() as logs:
        for error in (KeyError("a"), KeyError("a"), KeyError("b"), ValueError("a")):
            noted.note("plan", error, meanwhile="all goes on")
    assert [repr(line["exc_info"]) for line in logs] == [
        "KeyError('a')",
        "KeyError('b')",
        "ValueError('a')",
    ]
