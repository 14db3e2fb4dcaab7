"""Any sequence of requests: the server lives, and answers nothing that was not asked for.

Each request is settled before the next, so that what may be answered is known at every moment.
Runtime layers are left out: settling asks for them.
"""

import asyncio

import grpc
import hypothesis
from hypothesis import strategies as st

from tests.support.xds_wire import CLUSTER, ENDPOINT, LISTENER, ROUTE, StreamEndedError, Wire, names
from tests.xds.blackbox.interest import Interest
from tests.xds.blackbox.settling import settled
from tests.xds.blackbox.worlds import cluster, endpoints, listener, routes, world

LAST = "the last nonce"  # stands for what the server said, which is not known beforehand
TYPES = (CLUSTER, ENDPOINT, LISTENER, ROUTE)
ORDERLY = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)

resource_names = st.lists(st.sampled_from(["A", "B", "C", "*", "nobody"]), max_size=4)
nonces = st.sampled_from([LAST, LAST, LAST, "", "made up"])
errors = st.sampled_from([None, None, None, "", "A is no good", "no good\0\N{SNOWMAN}"])
versions = st.sampled_from(["", "v1", "made up"])
worlds = st.tuples(st.just("put"), st.lists(st.sampled_from("ABC"), unique=True), st.integers(1, 3))
strange = st.one_of(  # what ends a stream, or is ignored
    st.tuples(st.just("bytes"), st.binary(max_size=20)),
    st.tuples(st.just("type"), st.sampled_from(["", "type.googleapis.com/acme.Unheard", "\0"])),
    st.tuples(st.just("name"), st.sampled_from(["x" * 3000, "", "\N{SNOWMAN}", "A\0"])),
    st.tuples(st.just("node"), st.sampled_from(["", "another"])),
)


def sequences(**lists):
    fields = {"response_nonce": nonces, "error": errors, **lists}
    request = st.tuples(st.just("ask"), st.sampled_from(TYPES), st.fixed_dictionaries(fields))
    usual = st.one_of(request, request, request, request, worlds)
    return st.lists(st.one_of(usual, usual, usual, strange), min_size=1, max_size=12)


states = sequences(resource_names=resource_names, version_info=versions)
changes = sequences(
    resource_names_subscribe=resource_names,
    resource_names_unsubscribe=resource_names,
    initial_resource_versions=st.dictionaries(st.sampled_from("ABX"), versions, max_size=3),
)
bounded = hypothesis.settings(max_examples=50, deadline=None)


@bounded
@hypothesis.given(steps=states)
def test_any_requests_for_the_state_of_the_world(serving, steps):
    asyncio.run(survive(serving, "sotw", steps))


@bounded
@hypothesis.given(steps=changes)
def test_any_requests_for_changes(serving, steps):
    asyncio.run(survive(serving, "delta", steps))


async def survive(serving, variant, steps):
    """Take the steps on one stream until it ends, then ask as an Envoy does."""
    async with serving() as server, Wire(server.address) as wire:
        server.put(everything("AB", 1))
        fuzzed = wire.open(variant, node=server.node("fuzzed"))
        interest = Interest(variant)
        told_bytes = False
        try:
            for step in steps:
                told_bytes |= step[0] == "bytes"
                await take(step, server, fuzzed, interest)
                for response in await settled(fuzzed):
                    interest.check(response)
        except (grpc.aio.AioRpcError, StreamEndedError, asyncio.InvalidStateError):
            # Whoever raises within a handler is answered as UNKNOWN: that is a server that broke.
            orderly = await fuzzed.code() in ORDERLY
            assert told_bytes or orderly or await fuzzed.ended_beside_a_write()
        server.put(everything("AB", 9))
        good = wire.open(variant, node=server.node("good"))
        for type_url in TYPES:
            assert sorted(names(await good.subscribe(type_url, "A", "B"))) == ["A", "B"]


async def take(step, server, stream, interest):
    match step:
        case ("put", pools, version):
            server.put(everything(pools, version))
        case ("bytes", data):
            await stream.send_bytes(data)
        case ("type", type_url):
            await stream.send(type_url)
        case ("name", name):
            await ask(stream, interest, ENDPOINT, [name])
        case ("node", node_id):  # only the first request's counts
            await stream.send("type.googleapis.com/acme.Unheard", node=server.node(node_id))
        case ("ask", type_url, fields):
            if fields["response_nonce"] == LAST:
                fields = fields | {"response_nonce": interest.last_nonce(type_url)}
            interest.asked(type_url, fields)
            await stream.send(type_url, **fields)


async def ask(stream, interest, type_url, wanted):
    """Ask for these names, as a request that could be one."""
    nonce = interest.last_nonce(type_url)
    if stream.variant == "sotw":
        fields = {"resource_names": wanted}
    else:
        fields = {"resource_names_subscribe": wanted, "resource_names_unsubscribe": []}
    interest.asked(type_url, fields | {"response_nonce": nonce})
    await stream.send(type_url, response_nonce=nonce, **fields)


def everything(pools, version):
    contents = [builder(name, version) for name in pools for builder in BUILDERS]
    return world(*contents)


BUILDERS = (cluster, endpoints, listener, routes)
