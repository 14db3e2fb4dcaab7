"""The order between types, so that nothing is used before it is there, or goes while it is used."""

import asyncio

import pytest

from tests.support.xds_wire import (
    CLUSTER,
    ENDPOINT,
    LISTENER,
    ROUTE,
    bodies,
    messages,
    names,
    removed,
)
from tests.xds.blackbox.envoy_model import EnvoyModel
from tests.xds.blackbox.settling import settled, silent
from tests.xds.blackbox.worlds import (
    cluster,
    contents_of,
    endpoints,
    listener,
    no_endpoints,
    routes,
    world,
)

conformance = pytest.mark.conformance
BOUND_S = 10.0  # within which a wait for an ACK that never comes must have ended


def routed(*pools, to, version=1):
    """Return a world of pools, and a listener with routes to one of them."""
    contents = [message for name in pools for message in (cluster(name), endpoints(name))]
    return world(*contents, listener("L", version, routes_name="R"), routes("R", to=to))


@conformance("51")
async def test_51_what_is_used_comes_before_what_uses_it(server, stream):
    envoy = EnvoyModel(stream)
    await envoy.start()  # the world is empty
    server.put(routed("A", to="A"))
    order = list(dict.fromkeys(await envoy.follow()))
    assert order == [CLUSTER, ENDPOINT, LISTENER, ROUTE]


@conformance("51")
async def test_51_a_replaced_cluster_goes_when_no_route_uses_it_any_more(server, stream):
    envoy = EnvoyModel(stream)
    server.put(routed("A", to="A"))
    await envoy.start()
    server.put(routed("B", to="B", version=2))
    order = await envoy.follow()  # which fails when a route names what is not there
    added, rerouted, gone = order.index(CLUSTER), order.index(ROUTE), order.index(CLUSTER, 1)
    assert added < rerouted < gone
    assert (envoy.known(CLUSTER), envoy.known(ENDPOINT)) == ({"B"}, {"B"})


@conformance("51")
async def test_51_when_everything_goes_the_clusters_go_last(server, stream):
    envoy = EnvoyModel(stream)
    server.put(routed("A", to="A"))
    await envoy.start()
    server.put(world())
    order = await envoy.follow()
    assert order.index(LISTENER) < order.index(CLUSTER)
    assert not envoy.known(CLUSTER) | envoy.known(LISTENER)


@conformance("52")
async def test_52_listeners_wait_for_the_clusters_ack_and_endpoints_do_not(server, stream):
    server.put(routed("A", to="A"))
    await stream.want(CLUSTER)
    clusters = await stream.receive()
    await stream.want(LISTENER)
    await stream.want(ROUTE, "R")
    await silent(stream)
    await stream.want(ENDPOINT, "A")  # Envoy holds the clusters' ACK back until these are there
    assert messages(await stream.take()) == [endpoints("A")]
    await silent(stream)
    await stream.ack(clusters)
    assert [(await stream.take()).type_url for _ in range(2)] == [LISTENER, ROUTE]


@conformance("52")
async def test_52_the_wait_is_bounded(server, open_stream):
    server.put(routed("A", to="A"))

    async def wait_without_ack(variant):
        stream = open_stream(variant)
        await stream.want(CLUSTER)
        await stream.receive()
        await stream.want(LISTENER)
        await silent(stream)
        assert names(await stream.receive(within_s=BOUND_S)) == ["L"]

    await asyncio.gather(wait_without_ack("sotw"), wait_without_ack("delta"))


@conformance("53")
async def test_53_a_changed_clusters_endpoints_are_answered_again(server, stream):
    server.put(world(*map(cluster, "AB"), *map(endpoints, "AB")))
    await stream.subscribe(CLUSTER)
    await stream.subscribe(ENDPOINT, "A", "B")
    server.put(world(cluster("A", 2), cluster("B"), *map(endpoints, "AB")))
    later = await settled(stream, ack=True)
    assert cluster("A", 2) in contents_of(later, CLUSTER)
    assert endpoints("A") in contents_of(later, ENDPOINT)


@conformance("54")
async def test_54_a_cluster_without_endpoints_is_told_so(server, stream):
    server.put(world(cluster("A"), no_endpoints("A")))
    await stream.subscribe(CLUSTER)
    response = await stream.subscribe(ENDPOINT, "A")
    assert (messages(response), removed(response)) == ([no_endpoints("A")], [])
    server.put(world(cluster("A"), endpoints("A")))
    assert messages(await stream.take()) == [endpoints("A")]
    server.put(world(cluster("A"), no_endpoints("A")))  # its last one goes
    response = await stream.take()
    assert (messages(response), removed(response)) == ([no_endpoints("A")], [])


@conformance("56")
async def test_56_routes_stay_when_only_their_listener_changes(server, stream):
    server.put(routed("A", to="A"))
    await stream.subscribe(LISTENER)
    await stream.subscribe(ROUTE, "R")
    server.put(routed("A", to="A", version=2))
    assert (await stream.take()).type_url == LISTENER
    await silent(stream)
    await stream.want(ROUTE)  # the new listener asks for its routes again
    await settled(stream, ack=True)
    assert messages(await stream.subscribe(ROUTE, "R")) == [routes("R", to="A")]


@conformance("57")
async def test_57_endpoints_are_named_by_the_clusters_service_name(server, stream):
    server.put(world(cluster("A", service_name="svc"), endpoints("svc"), *pool_of("B")))
    await stream.subscribe(CLUSTER)
    response = await stream.subscribe(ENDPOINT, "svc", "B")
    assert {message.cluster_name for message in messages(response)} == {"svc", "B"}
    server.put(world(cluster("A", 2, service_name="svc"), endpoints("svc"), *pool_of("B")))
    later = contents_of(await settled(stream, ack=True), ENDPOINT)
    assert endpoints("svc") in later  # by that name again, for the cluster that warms


@conformance("63")
async def test_63_a_moved_weight_moves_endpoints_alone(server, stream, open_stream):
    server.put(routed("A", to="A"))
    envoy = EnvoyModel(stream)
    await envoy.start()
    before = bodies(await open_stream(stream.variant).subscribe(LISTENER))
    server.put({**routed("A", to="A"), ENDPOINT: {"A": endpoints("A", 7)}})
    assert await envoy.follow() == [ENDPOINT]
    after = bodies(await open_stream(stream.variant).subscribe(LISTENER))
    assert [body.value for body in before] == [body.value for body in after]


@conformance("63a")
async def test_63a_a_cluster_that_went_meanwhile_is_answered(server, stream, open_stream):
    server.put(world(*pool_of("A"), *pool_of("B")))
    await stream.subscribe(CLUSTER)
    first = await stream.subscribe(ENDPOINT, "A", "B")
    await stream.close()
    server.put(world(*pool_of("B")))
    again = open_stream(stream.variant)
    if stream.variant == "sotw":
        await again.send(ENDPOINT, resource_names=["A", "B"], version_info=first.version_info)
        assert no_endpoints("A") in messages(await again.take())
    else:
        held = {item.name: item.version for item in first.resources}
        await again.send(
            ENDPOINT, resource_names_subscribe=["A", "B"], initial_resource_versions=held
        )
        assert removed(await again.take()) == ["A"]
    await silent(again)


def pool_of(name):
    return cluster(name), endpoints(name)
