"""Lines that hold for every stream: who asks, which types, nonces, duplicates, versions."""

import asyncio

import grpc
import pytest

from tests.support.xds_wire import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
    TYPES,
    Wire,
    bodies,
    messages,
    names,
    removed,
)
from tests.xds.blackbox.settling import settled, silent
from tests.xds.blackbox.worlds import (
    BUILDERS,
    PROBES,
    cluster,
    contents_of,
    endpoints,
    extension,
    listener,
    routes,
    world,
    world_of,
)

conformance = pytest.mark.conformance
of_every_type = pytest.mark.parametrize(
    "type_url", TYPES, ids=lambda type_url: type_url.rpartition(".")[2]
)


@conformance("1")
async def test_1_the_first_requests_node_counts_for_all_later_ones(server, stream):
    server.put(world(cluster("A"), endpoints("A")))
    await stream.send(CLUSTER, node=server.node("envoy-1"))
    assert names(await stream.take()) == ["A"]
    assert names(await stream.subscribe(ENDPOINT, "A")) == ["A"]  # without a node


@conformance("2")
async def test_2_a_first_request_without_a_node_id_ends_the_stream(open_stream, server, variant):
    for node in (None, server.node("")):
        stream = open_stream(variant, node=node)
        await stream.send(CLUSTER)
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT


@conformance("3")
async def test_3_an_aggregated_stream_needs_a_type(stream):
    await stream.send("")
    assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT


@conformance("3")
@of_every_type
async def test_3_a_stream_of_one_type_implies_it(server, open_stream, variant, type_url):
    server.put(world_of(type_url, A=1))
    stream = open_stream(variant, only_type=type_url)
    field = "resource_names" if variant == "sotw" else "resource_names_subscribe"
    await stream.send("", **{field: ["A"]})
    response = await stream.receive()
    assert (response.type_url, names(response)) == (type_url, ["A"])


@conformance("4")
async def test_4_an_unknown_type_is_ignored_and_the_others_go_on(server, stream):
    server.put(world_of(CLUSTER, A=1))
    await stream.subscribe(CLUSTER)
    await stream.want("type.googleapis.com/acme.Unheard", "A")
    await silent(stream)
    server.put(world_of(CLUSTER, A=2))
    assert messages(await stream.receive()) == [cluster("A", 2)]


@conformance("5")
async def test_5_a_nack_of_one_type_leaves_the_others_as_they_are(server, stream):
    server.put(world(cluster("A"), endpoints("A"), listener("L")))
    await stream.subscribe(LISTENER)
    await stream.want(CLUSTER)
    clusters = await stream.receive()
    await stream.want(ENDPOINT, "A")
    assignments = await stream.receive()
    await stream.nack(clusters)
    await stream.ack(assignments)  # its nonce still counts
    assert contents_of(await settled(stream, ack=True), ENDPOINT) == []
    server.put(world(cluster("A"), endpoints("A", 2), listener("L")))
    later = await settled(stream, ack=True)
    assert contents_of(later, ENDPOINT) == [endpoints("A", 2)]
    assert contents_of(later, LISTENER) == []


@conformance("6")
async def test_6_nonces_are_told_and_unique(server, stream):
    nonces = []
    for version in range(1, 6):
        server.put(world(cluster("A", version), endpoints("A", version)))
        await stream.want(CLUSTER)
        nonces.append((await stream.take()).nonce)
        await stream.want(ENDPOINT, "A") if version == 1 else None
        nonces.append((await stream.take()).nonce)
    assert "" not in nonces
    assert len(set(nonces)) == len(nonces)


@conformance("6")
async def test_6_a_nonce_of_an_earlier_stream_is_no_ack(server, stream, open_stream):
    server.put(world_of(ENDPOINT, A=1))
    earlier = await stream.subscribe(ENDPOINT, "A")
    await stream.close()
    again = open_stream(stream.variant)
    await again.want(ENDPOINT, "A")
    response = await again.receive()
    await again.ack(earlier)
    server.put(world_of(ENDPOINT, A=2))
    await silent(again)  # the response is outstanding
    await again.ack(response)
    assert messages(await again.receive()) == [endpoints("A", 2)]


@conformance("25")
async def test_25_a_name_given_twice_is_answered_once(server, stream):
    server.put(world_of(ENDPOINT, A=1, B=1))
    await stream.want(ENDPOINT, "A", "B", "A", "A")
    response = await stream.take()
    assert sorted(names(response)) == ["A", "B"]
    await silent(stream)
    server.put(world_of(ENDPOINT, A=2, B=1))
    assert names(await stream.take()).count("A") == 1
    await silent(stream)


@conformance("25")
async def test_25_a_name_beside_the_wildcard_is_answered_once(server, stream):
    server.put(world_of(CLUSTER, A=1, B=1))
    response = await stream.subscribe(CLUSTER, "*", "A", "A")
    assert sorted(names(response)) == ["A", "B"]
    await silent(stream)


@conformance("26")
async def test_26_every_body_has_the_responses_type(server, stream):
    server.put(world(cluster("A"), endpoints("A"), listener("A"), routes("A"), extension("A")))
    for type_url in (CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE):
        response = await stream.subscribe(type_url, "A")
        assert [body.type_url for body in bodies(response)] == [response.type_url] == [type_url]
    response = await stream.subscribe(RUNTIME, PROBES[0])
    assert [body.type_url for body in bodies(response)] == [RUNTIME]


@conformance("29")
@of_every_type
async def test_29_equal_content_has_an_equal_version_on_every_replica_and_other_content_another(
    serving, variant, type_url
):
    async def versions(content):
        async with serving() as server, Wire(server.address) as wire:
            server.put(content)
            response = await wire.open(variant, node=server.node("e")).subscribe(type_url, "A")
            if variant == "sotw":
                return response.version_info
            return {item.name: item.version for item in response.resources}

    first, other = world_of(type_url, A=1), world_of(type_url, A=2)
    assert BUILDERS[type_url]("A", 1) != BUILDERS[type_url]("A", 2)
    told = await asyncio.gather(versions(first), versions(first), versions(other))
    assert all(told)
    assert told[0] == told[1] != told[2]


@conformance("30")
async def test_30_before_it_knows_anything_it_says_come_back(serving, variant):
    async with serving() as server, Wire(server.address) as wire:
        for only_type in (None, CLUSTER, ENDPOINT):
            early = wire.open(variant, only_type=only_type, node=server.node("envoy-1"))
            assert await early.code() is grpc.StatusCode.UNAVAILABLE
        server.put(world())  # which is known to be empty
        late = wire.open(variant, node=server.node("envoy-1"))
        assert names(await late.subscribe(CLUSTER)) == []


@conformance("31")
@pytest.mark.parametrize("type_url", [CLUSTER, LISTENER])
async def test_31_an_empty_world_is_said_once_so_that_a_start_can_end(stream, type_url):
    response = await stream.subscribe(type_url)
    assert (names(response), removed(response)) == ([], [])
    await silent(stream)


@conformance("49")
async def test_49_changes_behind_an_un_acked_response_are_merged(server, stream):
    server.put(world_of(ENDPOINT, A=1, B=1))
    await stream.want(ENDPOINT, "A", "B")
    response = await stream.receive()
    for version in (2, 3, 4):
        server.put(world_of(ENDPOINT, A=version, B=version))
        await silent(stream)
    await stream.ack(response)
    merged = await stream.take()
    assert messages(merged) == [endpoints("A", 4), endpoints("B", 4)]
    await silent(stream)


@conformance("50")
async def test_50_whoever_does_not_ack_has_one_pending_response_per_type(server, stream):
    server.put(_changed(1))
    for type_url in (CLUSTER, ENDPOINT, EXTENSION):
        await stream.want(type_url, "A")
    first = [await stream.receive() for _ in range(3)]
    for version in range(2, 51):
        server.put(_changed(version))
    await silent(stream)
    for response in first:
        await stream.ack(response)
    later = await settled(stream)
    for response in first:
        type_url = response.type_url
        assert contents_of(later, type_url) == [BUILDERS[type_url]("A", 50)]


def _changed(version):
    return world(cluster("A", version), endpoints("A", version), extension("A", version))
