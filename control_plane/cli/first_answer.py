"""The first chat request through the edge: asked until the mesh has settled."""

import asyncio

import aiohttp

from control_plane.addresses import HostPort
from control_plane.errors import WattmeshError

_POLL_S = 0.1
_MAX_TOKENS = 24


async def first_answer(edge: HostPort, model: str, *, deadline_s: float) -> str:
    """Return the text of a model's answer. Raise WattmeshError when none came in time."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say hello in one sentence."}],
        "max_tokens": _MAX_TOKENS,
    }
    last = "nothing"
    try:
        async with asyncio.timeout(deadline_s), aiohttp.ClientSession() as session:
            while True:
                status, text, content = await _ask(session, edge, body)
                if content is not None:
                    return content
                last = f"{status}: {text}" if status else text
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise WattmeshError(
            f"the edge at {edge} gave no answer of {model!r} within {deadline_s:g} s; "
            f"the last one was {last[:300]}"
        ) from None


async def _ask(
    session: aiohttp.ClientSession, edge: HostPort, body: object
) -> tuple[int, str, str | None]:
    """Return status, text and, when it is an answer, the model's words."""
    try:
        async with session.post(f"http://{edge}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                return response.status, await response.text(), None
            answer = await response.json()
            return 200, "", str(answer["choices"][0]["message"]["content"])
    except aiohttp.ClientError as error:
        return 0, str(error), None
