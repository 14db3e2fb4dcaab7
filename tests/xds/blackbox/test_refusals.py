"""ACK and NACK: what each of them makes a server say, or not say again.

A server may answer a NACK with the version before, of its own accord; these lines hold either way.
"""

import pytest

from tests.support.xds_wire import CLUSTER, ENDPOINT, messages, names
from tests.xds.blackbox.settling import settled, silent
from tests.xds.blackbox.worlds import BUILDERS, contents_of, world_of

conformance = pytest.mark.conformance
of_both_kinds = pytest.mark.parametrize(  # a response may hold all of it, or what changed
    "type_url", [CLUSTER, ENDPOINT], ids=["clusters", "endpoints"]
)
# One resource is at fault for certain; of several, none may be named.
in_any_company = pytest.mark.parametrize("company", [{}, {"B": 1}], ids=["alone", "beside another"])


async def refused(server, stream, type_url, company=(), **fields):
    """Bring a stream to version 1 of A, and let it refuse version 2."""
    company = dict(company)
    server.put(world_of(type_url, company, A=1))
    await stream.subscribe(type_url, "A", *company)
    server.put(world_of(type_url, company, A=2))
    response = await stream.receive()
    assert BUILDERS[type_url]("A", 2) in messages(response)
    await stream.nack(response, **fields)
    return response


@conformance("7")
@of_both_kinds
async def test_7_an_ack_is_answered_with_silence_until_something_changes(server, stream, type_url):
    server.put(world_of(type_url, A=1))
    await stream.subscribe(type_url, "A")
    await silent(stream)
    server.put(world_of(type_url, A=1))  # the same again is no change
    await silent(stream)
    server.put(world_of(type_url, A=2))
    assert messages(await stream.take()) == [BUILDERS[type_url]("A", 2)]
    await silent(stream)


@conformance("8")
@of_both_kinds
@in_any_company
async def test_8_a_refused_version_is_not_sent_again(server, stream, type_url, company):
    await refused(server, stream, type_url, company)
    later = await settled(stream, ack=True)
    server.put(world_of(type_url, company, A=2))
    later += await settled(stream, ack=True)
    assert BUILDERS[type_url]("A", 2) not in contents_of(later, type_url)


@conformance("9")
@of_both_kinds
@in_any_company
async def test_9_new_content_after_a_nack_is_sent_at_once(server, stream, type_url, company):
    await refused(server, stream, type_url, company)
    await settled(stream, ack=True)
    server.put(world_of(type_url, company, A=3))
    assert BUILDERS[type_url]("A", 3) in messages(await stream.take())


@conformance("10")
@of_both_kinds
@in_any_company
async def test_10_the_version_before_is_sent_since_a_part_of_the_refused_may_live(
    server, stream, type_url, company
):
    await refused(server, stream, type_url, company)
    later = await settled(stream, ack=True)
    server.put(world_of(type_url, company, A=1))
    later += await settled(stream, ack=True)
    assert BUILDERS[type_url]("A", 1) in contents_of(later, type_url)


@conformance("11")
@of_both_kinds
async def test_11_the_error_decides_and_never_the_version(server, sotw, open_stream, type_url):
    async def told(stream, error, version):
        """Settle version 2 so; return what is sent then, and when version 1 is back."""
        server.put(world_of(type_url, A=1))
        await stream.subscribe(type_url, "A")
        server.put(world_of(type_url, A=2))
        response = await stream.receive()
        versions = {"sent": response.version_info, "other": "other", "none": ""}
        await stream.send(
            type_url,
            resource_names=["A"],
            version_info=versions[version],
            response_nonce=response.nonce,
            error=error,
        )
        first = contents_of(await settled(stream, ack=True), type_url)
        server.put(world_of(type_url, A=1))
        return first, contents_of(await settled(stream, ack=True), type_url)

    async def afresh(number, error, version):
        # Every Envoy is another one: what one of them refused may be kept from those like it.
        stream = open_stream("sotw", node=server.node(f"envoy-{number}"))
        answer = await told(stream, error, version)
        await stream.close()
        return answer

    versions = ("sent", "other", "none")
    nacks = [await afresh(f"nack-{version}", "no good", version) for version in versions]
    acks = [await afresh(f"ack-{version}", None, version) for version in versions]
    assert nacks[0] == nacks[1] == nacks[2]
    assert acks[0] == acks[1] == acks[2]
    version_1 = BUILDERS[type_url]("A", 1)
    assert acks[0] == ([], [version_1])
    assert version_1 in [*nacks[0][0], *nacks[0][1]]


@conformance("11")
@of_both_kinds
async def test_11_an_error_without_a_text_is_a_nack(server, stream, type_url):
    await refused(server, stream, type_url, message="")
    later = contents_of(await settled(stream, ack=True), type_url)
    server.put(world_of(type_url, A=1))
    later += contents_of(await settled(stream, ack=True), type_url)
    assert later == [BUILDERS[type_url]("A", 1)]


@conformance("12")
@of_both_kinds
async def test_12_a_first_response_may_be_refused(server, stream, type_url):
    server.put(world_of(type_url, A=1))
    await stream.want(type_url, "A")
    await stream.nack(await stream.receive())  # version_info is empty: nothing is held
    assert contents_of(await settled(stream, ack=True), type_url) == []
    server.put(world_of(type_url, A=2))
    assert messages(await stream.take()) == [BUILDERS[type_url]("A", 2)]


@conformance("13")
@of_both_kinds
async def test_13_a_stale_request_is_not_answered(server, sotw, type_url):
    server.put(world_of(type_url, A=1))
    first = await sotw.subscribe(type_url, "A")
    server.put(world_of(type_url, A=2))
    second = await sotw.receive()
    await _say(sotw, first, "A")
    await silent(sotw)
    server.put(world_of(type_url, A=3))
    await silent(sotw)  # the stale request was no ACK of the second response
    await _say(sotw, second, "A")
    assert messages(await sotw.take()) == [BUILDERS[type_url]("A", 3)]


@conformance("14")
@of_both_kinds
async def test_14_a_name_beside_a_stale_nonce_is_served_with_the_next_request(
    server, sotw, type_url
):
    server.put(world_of(type_url, A=1, B=1))
    first = await sotw.subscribe(type_url, "A")
    server.put(world_of(type_url, A=2, B=1))
    second = await sotw.receive()
    await _say(sotw, first, "A", "B")
    await silent(sotw)
    await _say(sotw, second, "A", "B")
    assert "B" in names(await sotw.take())
    await silent(sotw)


async def _say(stream, response, *wanted):
    """Acknowledge a response whether or not it is the last one."""
    await stream.send(
        response.type_url,
        resource_names=wanted,
        version_info=response.version_info,
        response_nonce=response.nonce,
    )
