"""xDS over REST: what a poll is answered, and what is no poll."""

import io

import aiohttp
import pytest

from control_plane.addresses import HostPort
from control_plane.metrics import Metrics
from control_plane.resources import build_resources
from control_plane.rest import serve_rest
from control_plane.snapshot import CLUSTER, ENDPOINT, make_snapshot
from control_plane.store import SnapshotStore
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.ports import free_ports

conformance = pytest.mark.conformance
EDGE = {
    "id": "edge-1",
    "metadata": {"role": "edge", "listen_address": "127.0.0.1", "listen_port": 10000},
}


class Rest:
    """A client of the REST variant."""

    def __init__(self, store, session):
        self.store = store
        self._session = session

    async def poll(self, kind, *, node=EDGE, body=None, **fields):
        data = {"json": {"node": node, **fields}} if body is None else {"data": body}
        async with self._session.post(f"/v3/discovery:{kind}", **data) as response:
            has_body = response.content_type == "application/json" and response.status != 304
            return response.status, await response.json() if has_body else await response.read()


@pytest.fixture
def dropped():
    """The views that the store was told to forget."""
    return []


@pytest.fixture
async def rest(dropped):
    (port,) = free_ports(1)
    store = SnapshotStore(
        lambda plan, view: make_snapshot(build_resources(plan, view)),
        Metrics(),
        on_drop=dropped.append,
    )
    async with (
        serve_rest(store, HostPort("127.0.0.1", port)),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        yield Rest(store, session)


def plan(**meta):
    return make_plan(consul_entry("n1.e1", **meta))


@conformance("64")
@pytest.mark.parametrize(
    ("kind", "names", "count"),
    [
        ("clusters", [], 1),
        ("endpoints", ["acme_2Ffox"], 1),
        ("listeners", [], 1),
        ("routes", ["edge"], 1),
        ("runtime", ["wattmesh"], 1),
        ("extension_configs", ["request-limits"], 1),
        ("endpoints", [], 0),
        ("endpoints", ["nobody"], 0),
    ],
)
async def test_64_every_type_is_canonical_json_with_its_type(rest, kind, names, count):
    rest.store.publish(plan())
    status, answer = await rest.poll(kind, resource_names=names)
    assert status == 200
    assert len(answer["resources"]) == count
    assert all(item["@type"] == answer["type_url"] for item in answer["resources"])


@conformance("65")
async def test_65_the_current_version_is_answered_with_304_and_no_body(rest):
    rest.store.publish(plan())
    _, first = await rest.poll("clusters")
    again = await rest.poll("clusters", version_info=first["version_info"])
    assert again == (304, b"")
    rest.store.publish(plan(model="acme/owl"))
    status, other = await rest.poll("clusters", version_info=first["version_info"])
    assert (status, other["version_info"] != first["version_info"]) == (200, True)


@conformance("66")
async def test_66_an_empty_set_is_an_empty_list(rest):
    rest.store.publish(make_plan())
    status, answer = await rest.poll("clusters")
    assert (status, answer["resources"]) == (200, [])
    assert answer["version_info"]


@conformance("69")
async def test_69_versions_are_those_of_the_content_so_replicas_agree(rest):
    rest.store.publish(plan())
    _, first = await rest.poll("endpoints", resource_names=["acme_2Ffox"])
    rest.store.publish(plan(gpu_power="70"))
    rest.store.publish(plan())
    _, again = await rest.poll("endpoints", resource_names=["acme_2Ffox"])
    assert first["version_info"] == again["version_info"]


@conformance("30")
async def test_30_before_the_first_plan_it_says_come_back(rest):
    assert (await rest.poll("clusters"))[0] == 503


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"body": b"{"}, "no JSON"),
        ({"body": b"\xff"}, "no JSON"),
        ({"body": b"[" * 5000}, "no JSON"),
        ({"body": b"[]"}, "no DiscoveryRequest"),
        ({"body": b'{"node": 1}'}, "no DiscoveryRequest"),
        ({"body": b'{"node": {"metadata": {"role": [[[]]]}}}'}, "node.metadata.role"),
        ({"node": {"id": "x"}}, "node.metadata.role"),
        ({"type_url": ENDPOINT}, f"expected {CLUSTER}"),
    ],
)
async def test_what_is_no_poll_is_refused_with_the_reason(rest, fields, told):
    rest.store.publish(plan())
    status, answer = await rest.poll("clusters", **fields)
    assert status == 400
    assert told in answer["error"]["message"]


async def test_a_body_that_is_too_large_is_refused(rest):
    body = io.BytesIO(b" " * (1024 * 1024 + 1))
    assert (await rest.poll("clusters", body=body))[0] == 413


async def test_pollers_that_come_and_go_leave_nothing(rest, dropped):
    rest.store.publish(plan())
    for number in range(300):
        node = {"id": f"host-{number}", "metadata": {"role": "node"}}
        assert (await rest.poll("clusters", node=node))[0] == 200
    assert [view.node_id for view in dropped] == [f"host-{number}" for number in range(44)]
    status, _ = await rest.poll("clusters", node={"id": "host-0", "metadata": {"role": "node"}})
    assert status == 200


async def test_a_view_that_a_stream_uses_is_not_forgotten():
    forgotten = []
    store = SnapshotStore(
        lambda plan, view: make_snapshot(build_resources(plan, view)),
        Metrics(),
        on_drop=forgotten.append,
    )
    store.publish(plan())
    (port,) = free_ports(1)
    async with (
        serve_rest(store, HostPort("127.0.0.1", port), streamed=lambda view: view.node_id == "h0"),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        client = Rest(store, session)
        for number in range(258):
            await client.poll("clusters", node={"id": f"h{number}", "metadata": {"role": "node"}})
    assert [view.node_id for view in forgotten] == ["h1"]
