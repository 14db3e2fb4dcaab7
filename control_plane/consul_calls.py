"""Calls of py-consul with their failures as one error of ours."""

from collections.abc import Awaitable
from typing import TypeVar

import aiohttp
from consul import ConsulException, NotFound

from control_plane.errors import WattmeshError

_Answer = TypeVar("_Answer")


class ConsulCallError(WattmeshError):
    """Consul could not be reached, or refused the request."""


class ConsulGoneError(ConsulCallError):
    """What the request was about is not there any more."""


async def call(request: Awaitable[_Answer]) -> _Answer:
    """Return the answer of one request. Raise ConsulCallError."""
    try:
        return await request
    except NotFound as error:
        raise ConsulGoneError(f"Consul: {error}") from error
    except ConsulException as error:
        # What Consul's versions answer about a session that ended.
        gone = "invalid session" in str(error).lower()
        kind = ConsulGoneError if gone else ConsulCallError
        raise kind(f"Consul: {error}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ConsulCallError(f"Consul: {str(error) or type(error).__name__}") from error
