"""The incremental form: names added and dropped one by one, and what the client brings along."""

import pytest

from tests.support.xds_wire import CLUSTER, ENDPOINT, LISTENER, ROUTE, messages, names, removed
from tests.xds.blackbox.settling import settled, silent
from tests.xds.blackbox.worlds import BUILDERS, cluster, contents_of, endpoints, world, world_of

conformance = pytest.mark.conformance
of_both_kinds = pytest.mark.parametrize(
    "type_url", [CLUSTER, ENDPOINT], ids=["clusters", "endpoints"]
)


def versions(response):
    return {item.name: item.version for item in response.resources}


async def ask(stream, type_url, *, subscribe=(), unsubscribe=(), **fields):
    """Send one request of these lists, and nothing that an Envoy would add."""
    await stream.send(
        type_url,
        resource_names_subscribe=subscribe,
        resource_names_unsubscribe=unsubscribe,
        **fields,
    )


@conformance("32")
@of_both_kinds
async def test_32_a_reconnect_is_told_what_changed_and_what_went(
    server, delta, open_stream, type_url
):
    server.put(world_of(type_url, A=1, B=1, C=1))
    held = versions(await delta.subscribe(type_url, "A", "B", "C"))
    await delta.close()
    server.put(world_of(type_url, A=1, B=2))
    again = open_stream("delta")
    await ask(again, type_url, subscribe=["A", "B", "C"], initial_resource_versions=held)
    response = await again.take()
    assert messages(response) == [BUILDERS[type_url]("B", 2)]
    assert removed(response) == ["C"]
    await silent(again)


@conformance("32")
@pytest.mark.parametrize("type_url", [CLUSTER, LISTENER], ids=["clusters", "listeners"])
async def test_32_a_reconnect_by_the_wildcard_too(server, delta, open_stream, type_url):
    server.put(world_of(type_url, A=1, B=1, C=1))
    held = versions(await delta.subscribe(type_url))
    await delta.close()
    server.put(world_of(type_url, A=1, B=2))
    again = open_stream("delta")
    await ask(again, type_url, initial_resource_versions=held)
    response = await again.take()
    assert (names(response), removed(response)) == (["B"], ["C"])
    await silent(again)


@conformance("33")
async def test_33_versions_that_are_brought_along_later_are_ignored(server, delta):
    server.put(world_of(ENDPOINT, A=1, B=1))
    held = versions(await delta.subscribe(ENDPOINT, "A", "B"))
    await delta.want(ENDPOINT, "A")
    await ask(delta, ENDPOINT, subscribe=["B"], initial_resource_versions=held | {"gone": "1"})
    response = await delta.take()
    assert (names(response), removed(response)) == (["B"], [])


@conformance("34")
@of_both_kinds
async def test_34_what_is_held_is_sent_again_when_it_is_named_again(server, delta, type_url):
    server.put(world_of(type_url, A=1, B=1))
    await delta.subscribe(type_url, "A", "B")
    await ask(delta, type_url, subscribe=["A"])
    assert names(await delta.take()) == ["A"]
    await ask(delta, type_url, unsubscribe=["A"])
    await ask(delta, type_url, subscribe=["A"])
    assert names(await delta.take()) == ["A"]
    await silent(delta)


@conformance("35")
async def test_35_one_of_a_thousand_changes_and_one_is_sent(server, delta):
    many = {f"c{index:04}": 1 for index in range(1000)}
    server.put(world_of(CLUSTER, many))
    assert len(names(await delta.subscribe(CLUSTER))) == 1000
    server.put(world_of(CLUSTER, many | {"c0500": 2}))
    assert messages(await delta.take()) == [cluster("c0500", 2)]
    await silent(delta)


@conformance("36")
@of_both_kinds
async def test_36_a_removal_is_said_once(server, delta, type_url):
    server.put(world_of(type_url, A=1, B=1))
    await delta.subscribe(type_url, "A", "B")
    server.put(world_of(type_url, B=1))
    response = await delta.take()
    assert (names(response), removed(response)) == ([], ["A"])
    await silent(delta)
    server.put(world_of(type_url, B=2))
    response = await delta.take()
    assert (names(response), removed(response)) == (["B"], [])


@conformance("37")
@pytest.mark.parametrize("type_url", [CLUSTER, ENDPOINT, LISTENER, ROUTE])
async def test_37_an_unknown_name_is_answered_as_removed_and_watched(server, delta, type_url):
    response = await delta.subscribe(type_url, "X")
    assert (names(response), removed(response)) == ([], ["X"])
    await silent(delta)
    server.put(world_of(type_url, X=1))
    assert names(await delta.take()) == ["X"]


@conformance("38")
async def test_38_dropping_what_was_never_subscribed_is_nothing(server, delta):
    server.put(world_of(ENDPOINT, A=1, B=1))
    await delta.subscribe(ENDPOINT, "A")
    await ask(delta, ENDPOINT, unsubscribe=["B", "nobody"])
    await silent(delta)
    server.put(world_of(ENDPOINT, A=2, B=2))
    assert names(await delta.take()) == ["A"]


@conformance("39")
async def test_39_a_dropped_names_changes_are_not_sent(server, delta):
    server.put(world_of(ENDPOINT, A=1, B=1))
    await delta.subscribe(ENDPOINT, "A", "B")
    await ask(delta, ENDPOINT, unsubscribe=["B"])
    await silent(delta)
    server.put(world_of(ENDPOINT, A=1, B=2))
    await silent(delta)
    server.put(world_of(ENDPOINT, A=1))
    await silent(delta)  # nor is its removal


@conformance("40")
async def test_40_a_dropped_name_that_the_wildcard_covers_is_answered(server, delta):
    server.put(world_of(CLUSTER, A=1, B=1))
    await delta.subscribe(CLUSTER, "*", "A", "gone")
    await ask(delta, CLUSTER, unsubscribe=["A"])
    response = await delta.take()
    assert (names(response), removed(response)) == (["A"], [])
    await ask(delta, CLUSTER, unsubscribe=["gone"])
    response = await delta.take()
    assert (names(response), removed(response)) == ([], ["gone"])
    server.put(world_of(CLUSTER, A=2, B=1))  # the wildcard goes on
    assert names(await delta.take()) == ["A"]


@conformance("41")
@pytest.mark.parametrize("type_url", [CLUSTER, LISTENER], ids=["clusters", "listeners"])
async def test_41_a_wildcard_that_was_not_named_ends_for_good(server, delta, type_url):
    server.put(world_of(type_url, A=1, B=1))
    assert names(await delta.subscribe(type_url)) == ["A", "B"]
    await ask(delta, type_url, subscribe=["A"])
    await settled(delta, ack=True)
    await ask(delta, type_url, unsubscribe=["*"])
    await settled(delta, ack=True)
    server.put(world_of(type_url, A=2, B=2))
    assert names(await delta.take()) == ["A"]
    await ask(delta, type_url, unsubscribe=["A"])
    await settled(delta, ack=True)
    await ask(delta, type_url)
    server.put(world_of(type_url, A=3, B=3))
    await silent(delta)


@conformance("42")
async def test_42_a_subscription_beside_a_stale_nonce_counts(server, delta):
    server.put(world_of(ENDPOINT, A=1, B=1))
    first = await delta.subscribe(ENDPOINT, "A")
    server.put(world_of(ENDPOINT, A=2, B=1))
    second = await delta.receive()
    await ask(delta, ENDPOINT, subscribe=["B"], response_nonce=first.nonce)
    await delta.ack(second)
    assert names(await delta.take()) == ["B"]
    await ask(delta, ENDPOINT, unsubscribe=["A"], response_nonce="never heard of")
    await silent(delta)  # read before the world changes
    server.put(world_of(ENDPOINT, A=3, B=2))
    assert names(await delta.take()) == ["B"]


@conformance("43")
async def test_43_a_request_without_a_nonce_is_no_ack_and_one_with_both_is_both(server, delta):
    server.put(world_of(ENDPOINT, A=1, B=1))
    await delta.want(ENDPOINT, "A")
    response = await delta.receive()
    await ask(delta, ENDPOINT)
    server.put(world_of(ENDPOINT, A=2, B=1))
    await silent(delta)  # the first response is still outstanding
    await ask(delta, ENDPOINT, subscribe=["B"], response_nonce=response.nonce)
    later = contents_of(await settled(delta, ack=True), ENDPOINT)
    assert sorted(later, key=str) == sorted([endpoints("A", 2), endpoints("B", 1)], key=str)


@conformance("44")
@of_both_kinds
@pytest.mark.parametrize("then", [1, 3], ids=["back", "fixed"])
async def test_44_after_a_nack_any_other_version_is_sent(server, delta, type_url, then):
    server.put(world_of(type_url, A=1, B=1))
    await delta.subscribe(type_url, "A", "B")
    server.put(world_of(type_url, A=2, B=1))
    await delta.nack(await delta.receive(), "A is no good")
    later = await settled(delta, ack=True)  # version 1 may come at once
    server.put(world_of(type_url, A=then, B=1))
    later += await settled(delta, ack=True)
    assert BUILDERS[type_url]("A", then) in contents_of(later, type_url)
    assert BUILDERS[type_url]("A", 2) not in contents_of(later, type_url)


@conformance("45")
async def test_45_what_is_not_subscribed_is_not_sent(server, delta):
    server.put(world_of(ENDPOINT, A=1, B=1))
    assert names(await delta.subscribe(ENDPOINT, "A")) == ["A"]
    server.put(world_of(ENDPOINT, A=1, B=2, C=1))
    await silent(delta)
    server.put(world_of(ENDPOINT, A=1))
    await silent(delta)


@conformance("45")
async def test_45_a_type_that_was_not_asked_for_is_not_sent(server, delta):
    server.put(world(cluster("A"), endpoints("A")))
    await delta.subscribe(CLUSTER)
    server.put(world(cluster("A"), endpoints("A", 2)))
    await silent(delta)


@conformance("46")
async def test_46_a_name_in_both_lists_is_dropped(server, delta):
    server.put(world_of(ENDPOINT, A=1, B=1))
    await ask(delta, ENDPOINT, subscribe=["A", "B"], unsubscribe=["B"])
    assert names(await delta.take()) == ["A"]
    await ask(delta, ENDPOINT, subscribe=["A", "B"], unsubscribe=["A"])
    assert names(await delta.take()) == ["B"]
    server.put(world_of(ENDPOINT, A=2, B=2))
    assert names(await delta.take()) == ["B"]
    await silent(delta)
