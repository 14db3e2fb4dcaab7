"""Waiting in asyncio tests: poll a condition with a deadline."""

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], object], *, within_s: float = 5.0) -> None:
    """Return once the condition holds; fail when it does not within the time."""
    try:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 what is awaited rings no bell
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s") from None
