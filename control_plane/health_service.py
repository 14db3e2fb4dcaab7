"""The standard gRPC health service: serving means that there is something to serve.

An Envoy that knows several control planes asks each of them (grpc_health_check) and opens its
stream to one that is synced; one that is up but knows nothing yet must not attract it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Status = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers for the server as a whole, whose name in the protocol is the empty one."""

    def __init__(self, serving: Callable[[], bool], bell: Callable[[], asyncio.Event]) -> None:
        """`bell` returns the event that is set when `serving` may have changed."""
        self._serving = serving
        self._bell = bell

    def add_to(self, server: grpc.aio.Server) -> None:
        """Answer on a server that is not started yet."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 named by the protocol
        """Return the status now; NOT_FOUND for a service by name, as the protocol asks."""
        if request.service:
            await context.abort(grpc.StatusCode.NOT_FOUND, "only the server as a whole is known")
        return _Status(status=self._status())

    async def Watch(  # noqa: N802 named by the protocol
        self, request: Any, _context: Any
    ) -> AsyncIterator[Any]:
        """Yield the status and then every change of it; a service by name stays unknown."""
        last: int | None = None
        while True:
            bell = self._bell()
            status = _Status.SERVICE_UNKNOWN if request.service else self._status()
            if status != last:
                yield _Status(status=status)
                last = status
            await bell.wait()

    def _status(self) -> int:
        return int(_Status.SERVING if self._serving() else _Status.NOT_SERVING)
