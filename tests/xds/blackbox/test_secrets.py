"""Secrets: sent when asked for, whatever else waits, and gone only after what needs them."""

import pytest

from tests.support.xds_wire import CLUSTER, ENDPOINT, SECRET, messages, names, removed
from tests.xds.blackbox.settling import settled, silent
from tests.xds.blackbox.worlds import endpoints, secret, tls_cluster, world

conformance = pytest.mark.conformance


def pools(*pool_names, version=1, ca=1):
    """Return a world of clusters that trust the same secret."""
    contents = [tls_cluster(name, version, trusts="CA") for name in pool_names]
    return world(*contents, *map(endpoints, pool_names), secret("CA", ca))


@conformance("58")
async def test_58_clusters_that_share_a_secret_warm_on_one_answer(server, stream):
    server.put(pools("A", "B"))
    await stream.want(CLUSTER)
    clusters = await stream.receive()
    assert names(clusters) == ["A", "B"]
    await stream.want(ENDPOINT, "A", "B")
    await stream.take()
    await stream.want(SECRET, "CA")  # the clusters' ACK comes when they are warm
    assert messages(await stream.take()) == [secret("CA")]
    await stream.ack(clusters)
    await silent(stream)


@conformance("59")
async def test_59_a_secret_is_not_held_back_for_one_that_is_missing(server, stream):
    server.put(world(secret("A")))
    await stream.want(SECRET, "A", "missing")
    assert names(await stream.take()) == ["A"]
    server.put(world(secret("A"), secret("missing")))
    assert names(await stream.take()) == ["missing"]


@conformance("60")
async def test_60_a_secret_goes_after_the_cluster_that_needs_it(server, delta):
    stream = delta  # the state of the world removes no secret
    server.put(pools("A"))
    await stream.want(CLUSTER)
    clusters = await stream.receive()
    await stream.want(ENDPOINT, "A")
    await stream.take()
    await stream.want(SECRET, "CA")
    await stream.take()
    await stream.ack(clusters)
    await settled(stream)
    server.put(world())
    gone = await stream.receive()
    while gone.type_url == ENDPOINT:
        await stream.ack(gone)
        gone = await stream.receive()
    assert (gone.type_url, removed(gone)) == (CLUSTER, ["A"])
    await stream.ack(gone)
    later = await settled(stream)
    assert ["CA"] in [removed(response) for response in later if response.type_url == SECRET]


@conformance("62")
async def test_62_a_rotation_is_one_secret(server, stream):
    server.put(pools("A"))
    await stream.want(CLUSTER)
    clusters = await stream.receive()
    await stream.want(ENDPOINT, "A")
    await stream.take()
    await stream.want(SECRET, "CA")
    await stream.take()
    await stream.ack(clusters)
    await settled(stream)
    server.put(pools("A", ca=2))
    (response,) = await settled(stream)
    assert messages(response) == [secret("CA", 2)]
