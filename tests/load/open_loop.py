"""Sending a trace by the clock, whatever becomes of earlier requests, and what came of it."""

import asyncio
import math
import statistics
import time
from collections.abc import Sequence

import aiohttp

from tests.load.queueing import Request
from tests.support.envoy_lab import chat

_GIVE_UP_S = 30.0  # after the last arrival; what is not answered by then counts as unfinished


async def run_trace(url: str, trace: Sequence[Request]) -> list[float]:
    """Send a trace; return the times in seconds, infinity for what got no 200 in time."""
    ends_s = trace[-1].at_s + _GIVE_UP_S
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        started = time.monotonic()

        async def send(request: Request) -> float:
            await asyncio.sleep(max(0.0, started + request.at_s - time.monotonic()))
            body = chat(max_tokens=round(request.tokens), messages=[{"role": "user"}])
            headers = {"content-type": "application/json"}
            began = time.monotonic()
            left_s = started + ends_s - began
            try:
                async with (
                    asyncio.timeout(left_s),
                    session.post("/v1/chat/completions", data=body, headers=headers) as response,
                ):
                    await response.read()
                    answered = response.status == 200
            except (aiohttp.ClientError, TimeoutError):
                answered = False
            return time.monotonic() - began if answered else math.inf

        return list(await asyncio.gather(*(send(request) for request in trace)))


def figures(times: Sequence[float], slo_s: float) -> dict[str, float]:
    """Return mean, p50, p99 in seconds, goodput (share within the SLO) and what never ended.

    The first tenth warms up. The mean is of what ended.
    """
    warm = sorted(times[len(times) // 10 :])
    ended = [value for value in warm if math.isfinite(value)]
    return {
        "mean_s": statistics.fmean(ended),
        "p50_s": warm[len(warm) // 2],
        "p99_s": warm[int(len(warm) * 0.99)],
        "goodput": sum(1 for value in warm if value <= slo_s) / len(warm),
        "unfinished": 1 - len(ended) / len(warm),
    }
