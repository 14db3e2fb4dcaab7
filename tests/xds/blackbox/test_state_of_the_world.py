"""What a list of names means in the state of the world, and what a response must hold."""

import pytest

from tests.support.xds_wire import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME, messages, names
from tests.xds.blackbox.settling import settled, silent
from tests.xds.blackbox.worlds import (
    BUILDERS,
    contents_of,
    endpoints,
    no_endpoints,
    routes,
    world,
    world_of,
)

conformance = pytest.mark.conformance


def of_types(*type_urls):
    return pytest.mark.parametrize(
        "type_url", type_urls, ids=[url.rpartition(".")[2] for url in type_urls]
    )


whole = of_types(CLUSTER, LISTENER)  # types of which a response holds everything
named = of_types(ENDPOINT, ROUTE)
all_four = of_types(CLUSTER, ENDPOINT, LISTENER, ROUTE)


@conformance("15")
@all_four
async def test_15_a_name_more_is_answered_though_nothing_changed(server, sotw, type_url):
    server.put(world_of(type_url, A=1, B=1))
    await sotw.subscribe(type_url, "A")
    assert "B" in names(await sotw.subscribe(type_url, "A", "B"))
    await silent(sotw)


@conformance("16")
@all_four
async def test_16_a_dropped_names_changes_are_not_sent(server, sotw, type_url):
    server.put(world_of(type_url, A=1, B=1))
    await sotw.subscribe(type_url, "A", "B")
    await sotw.want(type_url, "A")
    await settled(sotw, ack=True)  # a response is allowed
    server.put(world_of(type_url, A=1, B=2))
    await silent(sotw)
    server.put(world_of(type_url, A=2, B=2))
    assert messages(await sotw.take()) == [BUILDERS[type_url]("A", 2)]


@conformance("17")
@all_four
async def test_17_a_dropped_name_that_is_named_again_is_sent_again(server, sotw, type_url):
    server.put(world_of(type_url, A=1, B=1))
    await sotw.subscribe(type_url, "A", "B")
    await sotw.want(type_url, "A")
    await settled(sotw, ack=True)
    assert "B" in names(await sotw.subscribe(type_url, "A", "B"))


@conformance("18")
@named
async def test_18_no_name_of_a_named_type_is_an_end_and_not_a_wildcard(server, sotw, type_url):
    server.put(world_of(type_url, A=1, B=1))
    await sotw.subscribe(type_url, "A")
    await sotw.want(type_url)
    await silent(sotw)
    server.put(world_of(type_url, A=2, B=2))
    await silent(sotw)
    assert messages(await sotw.subscribe(type_url, "A")) == [BUILDERS[type_url]("A", 2)]


@conformance("18")
@named
async def test_18_a_named_type_that_is_asked_without_names_is_no_wildcard(server, sotw, type_url):
    server.put(world_of(type_url, A=1, B=1))
    await sotw.want(type_url)
    assert contents_of(await settled(sotw, ack=True), type_url) == []


@conformance("19")
@whole
async def test_19_no_name_at_first_is_everything_until_one_was_given(server, sotw, type_url):
    server.put(world_of(type_url, A=1, B=1))
    assert names(await sotw.subscribe(type_url)) == ["A", "B"]  # and acknowledged without a name
    server.put(world_of(type_url, A=1, B=1, C=1))
    assert names(await sotw.take()) == ["A", "B", "C"]
    await sotw.want(type_url, "A")
    await settled(sotw, ack=True)
    await sotw.want(type_url)
    await settled(sotw, ack=True)
    server.put(world_of(type_url, A=2, B=2, C=2))
    await silent(sotw)


@conformance("20")
@whole
async def test_20_the_wildcard_by_its_name(server, sotw, type_url):
    server.put(world_of(type_url, A=1, B=1))
    assert names(await sotw.subscribe(type_url, "*", "A")) == ["A", "B"]
    server.put(world_of(type_url, A=1, B=2))
    assert "B" in names(await sotw.take())
    await sotw.want(type_url, "A")
    await settled(sotw, ack=True)
    server.put(world_of(type_url, A=2, B=3))
    assert names(await sotw.take()) == ["A"]
    await sotw.want(type_url)
    await settled(sotw, ack=True)
    server.put(world_of(type_url, A=3, B=4))
    await silent(sotw)


@conformance("21")
@whole
async def test_21_one_that_changed_comes_with_all_the_others(server, sotw, type_url):
    server.put(world_of(type_url, A=1, B=1, C=1))
    await sotw.subscribe(type_url)
    server.put(world_of(type_url, A=1, B=2, C=1))
    assert messages(await sotw.take()) == [
        BUILDERS[type_url](name, version) for name, version in (("A", 1), ("B", 2), ("C", 1))
    ]


@conformance("22")
@whole
async def test_22_the_last_one_goes_with_an_empty_response_of_another_version(
    server, sotw, type_url
):
    server.put(world_of(type_url, A=1))
    before = await sotw.subscribe(type_url)
    server.put(world())
    after = await sotw.take()
    assert names(after) == []
    assert after.version_info not in ("", before.version_info)
    await silent(sotw)


@conformance("23")
@named
async def test_23_of_a_named_type_what_changed_is_enough(server, sotw, type_url):
    server.put(world_of(type_url, A=1, B=1))
    await sotw.subscribe(type_url, "A", "B")
    server.put(world_of(type_url, A=2, B=1))
    assert BUILDERS[type_url]("A", 2) in messages(await sotw.take())
    await silent(sotw)
    server.put(world_of(type_url, A=2, B=2))  # what was left out is subscribed as before
    assert BUILDERS[type_url]("B", 2) in messages(await sotw.take())


@conformance("24")
async def test_24_an_unknown_name_is_no_error_and_is_sent_when_it_is_there(server, sotw):
    await sotw.want(ROUTE, "X")
    await silent(sotw)
    server.put(world(routes("X")))
    assert messages(await sotw.take()) == [routes("X")]


@conformance("24")
@conformance("63a")
async def test_24_63a_an_unknown_clusters_endpoints_are_none_until_they_are_there(server, sotw):
    assert messages(await sotw.subscribe(ENDPOINT, "X")) == [no_endpoints("X")]
    await silent(sotw)
    server.put(world_of(ENDPOINT, X=1))
    assert messages(await sotw.take()) == [endpoints("X")]


@conformance("28")
@of_types(ENDPOINT, ROUTE, RUNTIME, CLUSTER, LISTENER)
async def test_28_a_new_stream_is_answered_in_full_though_its_version_is_current(
    server, sotw, open_stream, type_url
):
    server.put(world_of(type_url, A=1, B=1))
    held = await sotw.subscribe(type_url, "A", "B")
    await sotw.close()
    again = open_stream("sotw")
    await again.send(type_url, resource_names=["A", "B"], version_info=held.version_info)
    response = await again.receive()
    assert (messages(response), response.version_info) == (messages(held), held.version_info)
