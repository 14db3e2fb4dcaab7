"""Measured capacities in a real Consul: kept, shared by compare-and-set, and never in the way."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from consul.aio import Consul

from control_plane.consul_calls import ConsulCallError
from control_plane.consul_catalog import open_consul
from control_plane.posterior import Posterior
from control_plane.posterior_store import PREFIX, ConsulPosteriors
from tests.support import paths
from tests.support.consul import ConsulServer

pytestmark = pytest.mark.consul
conformance = pytest.mark.conformance

LITTLE = Posterior(fingerprint="f", log_ratio=0.1, samples=2, correction=0.0)
MUCH = Posterior(fingerprint="f", log_ratio=-0.7, samples=9, correction=-0.7)


@pytest.fixture(scope="module")
def server() -> Iterator[ConsulServer]:
    binary = paths.consul()
    assert binary is not None
    with tempfile.TemporaryDirectory(prefix="wm-", dir="/tmp") as root:
        server = ConsulServer(binary, Path(root))
        server.start()
        yield server
        server.stop()


@pytest.fixture
async def client(server):
    async with open_consul(server.address, None) as client:
        await client.kv.delete(PREFIX, recurse=True)
        yield client


def beliefs(states):
    return {name: (s.fingerprint, s.samples, s.correction) for name, s in states.items()}


async def test_a_restart_knows_what_was_learnt(client: Consul):
    states = {"n1.e0": MUCH, "n1.e1": LITTLE, "weird/node:x.e0": MUCH}
    assert await ConsulPosteriors(client).save(states) == {}
    assert beliefs(await ConsulPosteriors(client).load()) == beliefs(states)
    _, keys = await client.kv.get(PREFIX, keys=True)
    assert keys == [f"{PREFIX}n1", f"{PREFIX}weird_2Fnode_3Ax"]


@conformance("consul-35")
@conformance("consul-36")
async def test_of_two_writers_the_one_that_knows_more_wins(client: Consul):
    first, second = ConsulPosteriors(client), ConsulPosteriors(client)
    await first.save({"n1.e0": MUCH})
    assert beliefs(await second.save({"n1.e0": LITTLE})) == beliefs({"n1.e0": MUCH})
    assert beliefs(await second.load()) == beliefs({"n1.e0": MUCH})


async def test_an_unchanged_belief_is_not_written_again(client: Consul):
    store = ConsulPosteriors(client)
    await store.save({"n1.e0": MUCH})
    index, _ = await client.kv.get(PREFIX, recurse=True)
    await store.save({"n1.e0": MUCH})
    assert (await client.kv.get(PREFIX, recurse=True))[0] == index


async def test_a_value_that_cannot_be_read_is_written_over(client: Consul):
    await client.kv.put(f"{PREFIX}n1", "not json")
    store = ConsulPosteriors(client)
    assert await store.load() == {}
    await store.save({"n1.e0": MUCH})
    assert beliefs(await ConsulPosteriors(client).load()) == beliefs({"n1.e0": MUCH})


@conformance("consul-36")
async def test_a_key_that_somebody_deleted_is_written_again(client: Consul):
    store = ConsulPosteriors(client)
    await store.save({"n1.e0": LITTLE})
    await client.kv.delete(f"{PREFIX}n1")
    await store.save({"n1.e0": MUCH})  # notices
    await store.save({"n1.e0": MUCH})
    assert beliefs(await ConsulPosteriors(client).load()) == beliefs({"n1.e0": MUCH})


async def test_a_consul_that_is_away_is_an_error_of_ours():
    async with open_consul("http://127.0.0.1:1", None) as client:
        with pytest.raises(ConsulCallError, match="Consul"):
            await ConsulPosteriors(client).load()
