"""Silence that is proven without a clock: something else is asked, and answered next."""

from typing import Any

from tests.support.xds_wire import RUNTIME, WireStream
from tests.xds.blackbox.worlds import PROBES

_MOST_PASSES = 10


async def settled(stream: WireStream, *, ack: bool = False) -> list[Any]:
    """Return everything that a stream is sent besides the answers to our probes, until it rests.

    With `ack` all of it is acknowledged, and what follows from that is returned too.
    """
    answers: list[Any] = []
    for _ in range(_MOST_PASSES):
        news = await _pass(stream)
        answers += news
        if not (ack and news):
            return answers
        for response in news:
            await stream.ack(response)
    raise AssertionError(f"no rest after {_MOST_PASSES} passes: {answers[-3:]}")


async def silent(stream: WireStream) -> None:
    """Fail when the stream is sent anything."""
    answers = await settled(stream)
    assert answers == [], f"expected silence, got {answers}"


async def _pass(stream: WireStream) -> list[Any]:
    """Ask for two runtime layers, one after the other.

    A server may put the answer to the first one before others that it makes in the same step; the
    second is asked when these are on their way.
    """
    others = []
    for _ in range(2):
        await stream.want(RUNTIME, _next_probe(stream))
        while (response := await stream.receive()).type_url != RUNTIME:
            others.append(response)
        await stream.ack(response)
    return others


def _next_probe(stream: WireStream) -> str:
    asked = stream.wanted(RUNTIME)
    return PROBES[(PROBES.index(asked[0]) + 1) % len(PROBES)] if asked else PROBES[0]
