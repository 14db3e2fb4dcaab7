"""What was learnt of engines, kept in Consul's KV so that a restart does not forget it.

One key per node below `wattmesh/capacity/`, written by the leader, by compare-and-set: when
somebody else wrote meanwhile, the belief with more samples wins. A value that cannot be read is
worth nothing, and is written over: engines are then measured anew.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import structlog
from consul.aio import Consul

from control_plane.consul_calls import call
from control_plane.errors import InputError, Problem, shown
from control_plane.identity import encode_name
from control_plane.posterior import LARGEST_FACTOR, LEAST_FACTOR, Posterior

logger = structlog.get_logger()

PREFIX = "wattmesh/capacity/"
_MAX_LOG = 50.0  # of a ratio; beyond is no measurement
_LEAST, _LARGEST = math.log(LEAST_FACTOR) - 1e-6, math.log(LARGEST_FACTOR) + 1e-6  # of a correction
Posteriors = Mapping[str, Posterior]  # by engine ID


class PosteriorStore(Protocol):
    """Where a meter keeps what it learnt."""

    async def load(self) -> dict[str, Posterior]:
        """Return everything that is kept. Raise ConsulCallError."""

    async def save(self, posteriors: Posteriors) -> dict[str, Posterior]:
        """Keep these; return those of others that know more. Raise ConsulCallError."""


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    fingerprint: str
    log_ratio: float
    samples: int
    correction: float


def render_posteriors(posteriors: Posteriors) -> bytes:
    """Return the JSON of some engines' beliefs; equal beliefs give equal bytes."""
    stored = {
        engine: _Stored(state.fingerprint, state.log_ratio, state.samples, state.correction)
        for engine, state in sorted(posteriors.items())
    }
    return msgspec.json.encode(stored)


def parse_posteriors(data: bytes, *, source: str) -> dict[str, Posterior]:
    """Return the beliefs of a JSON document. Raise InputError when it is anything else."""
    try:
        stored = msgspec.json.decode(data, type=dict[str, _Stored])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(source, data, f"measured capacities ({error})") from error
    for engine, item in stored.items():
        plausible = -_MAX_LOG <= item.log_ratio <= _MAX_LOG
        if item.samples < 0 or not (plausible and _LEAST <= item.correction <= _LARGEST):
            raise _unreadable(source, data, f"finite values and samples of {shown(engine)}")
    return {
        engine: Posterior(
            fingerprint=item.fingerprint,
            log_ratio=item.log_ratio,
            samples=item.samples,
            target=item.correction,
            correction=item.correction,
            reason="known from before",
        )
        for engine, item in stored.items()
    }


def _unreadable(source: str, data: bytes, expected: str) -> InputError:
    return InputError(
        [
            Problem(
                source=source,
                path="document",
                value=shown(data[:60]),
                expected=expected,
                meanwhile="its engines are measured anew",
            )
        ]
    )


def merge(own: Posteriors, other: Posteriors) -> dict[str, Posterior]:
    """Return the beliefs of `other` that rest on more samples of the same declaration."""
    return {
        engine: state
        for engine, state in other.items()
        if engine in own
        and state.fingerprint == own[engine].fingerprint
        and state.samples > own[engine].samples
    }


class ConsulPosteriors:
    """A PosteriorStore in Consul's KV."""

    def __init__(self, client: Consul) -> None:
        self._client = client
        self._written: dict[str, tuple[int, bytes]] = {}  # by node: index and value as last seen

    async def load(self) -> dict[str, Posterior]:
        """Return everything that is kept; what cannot be read is logged and left out."""
        _, values = await call(self._client.kv.get(PREFIX, recurse=True))
        found: dict[str, Posterior] = {}
        for value in values or ():
            found |= self._read(value)
        return found

    async def save(self, posteriors: Posteriors) -> dict[str, Posterior]:
        """Write the nodes whose engines' beliefs changed."""
        by_node: dict[str, dict[str, Posterior]] = {}
        for engine, state in posteriors.items():
            if state.samples:
                by_node.setdefault(engine.rpartition(".")[0], {})[engine] = state
        adopted: dict[str, Posterior] = {}
        for node, states in by_node.items():
            adopted |= await self._save_node(node, states)
        return adopted

    async def _save_node(self, node: str, states: Posteriors) -> dict[str, Posterior]:
        key, data = f"{PREFIX}{encode_name(node)}", render_posteriors(states)
        index, seen = self._written.get(key, (0, b""))
        if data == seen:
            return {}
        written = await call(self._client.kv.put(key, data, cas=index))
        _, value = await call(self._client.kv.get(key))
        if value is None:  # somebody deleted the key
            self._written.pop(key, None)
            return {}
        theirs = self._read(value)
        return {} if written else merge(states, theirs)

    def _read(self, value: Mapping[str, Any]) -> dict[str, Posterior]:
        key, data = str(value["Key"]), value["Value"] or b""
        self._written[key] = int(value["ModifyIndex"]), data
        try:
            return parse_posteriors(data, source=f"Consul key {key}")
        except InputError as error:
            logger.warning("measured capacities unreadable", reason=str(error))
            return {}
