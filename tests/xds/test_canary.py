"""Changed clusters, listeners and routes over the wire: to one Envoy first, on its ACK to all."""

import contextlib

import pytest

from control_plane.addresses import UnixSocket
from control_plane.ads import AdsService, serve_ads
from control_plane.metrics import Metrics
from control_plane.plan import Plan
from control_plane.resources import Resources
from control_plane.snapshot import CLUSTER, ENDPOINT, make_snapshot
from control_plane.store import SnapshotStore
from tests.support.eventually import eventually
from tests.support.xds import make_assignment, make_cluster
from tests.support.xds_wire import Wire, make_node, messages, names

NAMES = ("edge-1", "edge-2", "edge-3")
VARIANTS = pytest.mark.parametrize("variant", ["sotw", "delta"])


class Served:
    """A running server with pools of one engine each, and a client of it for each edge."""

    def __init__(self, path):
        self.address = UnixSocket(str(path / "xds.sock"))
        self.now = 0.0  # of the gate alone
        self.metrics = Metrics()
        self.store = SnapshotStore(self._render, self.metrics, clock=lambda: self.now)
        self.service = AdsService(self.store, self.metrics)
        self.pools = {}
        self.plans = 0

    def _render(self, _plan, _view):
        return make_snapshot(
            Resources(
                clusters=tuple(make_cluster(n, alt_stat_name=s) for n, (s, _) in self.pools),
                endpoints=tuple(make_assignment(n, weight) for n, (_, weight) in self.pools),
            )
        )

    def publish(self, **pools):
        """Put pools in force: of each the name in its cluster's statistics, and its weight."""
        self.pools = sorted(pools.items())
        self.plans += 1
        self.store.publish(Plan(max_request_bytes=self.plans))

    def canary(self, clients):
        """Return the client that tries a change, and the others."""
        (hold,) = self.store.held
        (canary,) = hold.canaries
        return clients[canary], [clients[name] for name in hold.waiting]


@contextlib.asynccontextmanager
async def serving(path):
    served = Served(path)
    async with serve_ads(served.service, [served.address]), Wire(str(served.address)) as wire:
        yield served, wire


def edge(name):
    return make_node(name, role="edge", listen_address="127.0.0.1", listen_port=10000)


async def connected(served, wire, variant, **pools):
    """Publish, and return clients by node that hold all clusters and the endpoints of A."""
    served.publish(**pools)
    clients = {name: wire.open(variant, node=edge(name)) for name in NAMES}
    for client in clients.values():
        await client.subscribe(CLUSTER)
        await client.subscribe(ENDPOINT, "A")
    return clients


async def first_try(served, clients):
    """Return the canary's client with the change that it is sent, and the others' clients."""
    for client in clients.values():
        with contextlib.suppress(TimeoutError):
            while (response := await client.receive(within_s=0.2)).type_url != CLUSTER:
                await client.ack(response)
            canary, others = served.canary(clients)
            assert client is canary
            return canary, response, others
    raise AssertionError("the change went to nobody")


async def take_clusters(client):
    """Acknowledge everything up to the next clusters, and return them."""
    while (response := await client.take()).type_url != CLUSTER:
        pass
    return messages(response)


@VARIANTS
async def test_a_changed_cluster_reaches_the_others_once_the_canary_took_it(
    short_tmp_path, variant
):
    async with serving(short_tmp_path) as (served, wire):
        clients = await connected(served, wire, variant, A=("one", 1))
        served.publish(A=("two", 1))
        canary, response, others = await first_try(served, clients)
        for client in others:
            await client.silence()
        await canary.ack(response)
        for client in others:
            (cluster,) = messages(await client.receive())
            assert cluster.alt_stat_name == "two"
        assert served.store.held == ()


@VARIANTS
@pytest.mark.conformance("8")
@pytest.mark.case("D5")
async def test_8_d5_what_the_canary_refuses_is_sent_to_nobody_else(short_tmp_path, variant):
    async with serving(short_tmp_path) as (served, wire):
        clients = await connected(served, wire, variant, A=("one", 1))
        served.publish(A=("two", 1))
        canary, response, others = await first_try(served, clients)
        await canary.nack(response, "Error adding/updating cluster(s) A: no good")
        put_right = await take_clusters(canary)  # it may hold part of what it refused
        assert [cluster.alt_stat_name for cluster in put_right] == ["one"]
        for client in others:
            await client.silence()
        served.publish(A=("three", 1))
        canary, response, others = await first_try(served, clients)
        await canary.ack(response)
        for client in others:
            (cluster,) = messages(await client.receive())
            assert cluster.alt_stat_name == "three"


@VARIANTS
async def test_endpoints_move_at_once_for_those_who_wait_and_a_vanished_pool_has_none(
    short_tmp_path, variant
):
    async with serving(short_tmp_path) as (served, wire):
        clients = await connected(served, wire, variant, A=("one", 1), B=("one", 1))
        served.publish(B=("two", 1))
        for client in clients.values():
            response = await client.receive()
            if response.type_url == CLUSTER:
                continue
            (assignment,) = messages(response)
            assert (assignment.cluster_name, len(assignment.endpoints)) == ("A", 0)
            assert client is not served.canary(clients)[0]


async def test_another_envoy_tries_the_change_when_the_canary_goes(short_tmp_path):
    async with serving(short_tmp_path) as (served, wire):
        clients = await connected(served, wire, "delta", A=("one", 1))
        served.publish(A=("two", 1))
        gone, _, others = await first_try(served, clients)
        await gone.close()
        again, response, (last,) = await first_try(
            served, {name: client for name, client in clients.items() if client in others}
        )
        await last.silence()
        await again.ack(response)
        assert names(await last.receive()) == ["A"]


async def test_the_bound_ends_the_wait_without_any_answer(short_tmp_path):
    async with serving(short_tmp_path) as (served, wire):
        clients = await connected(served, wire, "delta", A=("one", 1))
        served.publish(A=("two", 1))
        _, _, others = await first_try(served, clients)
        served.now = 5.0
        served.publish(A=("two", 2))  # wakes them, as their own deadline would
        for client in others:
            changed = {(await client.receive()).type_url for _ in range(2)}
            assert changed == {CLUSTER, ENDPOINT}


@VARIANTS
async def test_what_is_cleared_is_sent_again_to_the_envoy_that_refused_it(short_tmp_path, variant):
    async with serving(short_tmp_path) as (served, wire):
        served.publish(A=("one", 1))
        client = wire.open(variant, node=edge("edge-1"))
        await client.subscribe(CLUSTER)
        served.publish(A=("two", 1))
        await client.nack(await client.receive(), "Error adding/updating cluster(s) A: no good")
        (put_right,) = await take_clusters(client)
        assert put_right.alt_stat_name == "one"
        (refusal,) = served.store.quarantined
        assert served.store.clear_quarantine(refusal.version) == (refusal,)
        (again,) = await take_clusters(client)
        assert again.alt_stat_name == "two"
        await eventually(
            lambda: [kind.state for kind in served.service.status()[0].types] == ["SYNCED"]
        )
