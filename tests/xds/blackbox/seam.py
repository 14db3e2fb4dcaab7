"""What the scenarios need of a server under test, and all that they know of it."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

World = Mapping[str, Mapping[str, Any]]  # type URL → name → message


class ServerUnderTest(Protocol):
    """A running xDS server whose content a test sets. It knows nothing until the first `put`."""

    @property
    def address(self) -> str:
        """Where it serves ADS and the services of one type, as a gRPC target."""

    def put(self, world: World) -> None:
        """Replace all its content. What is asked afterwards is answered from the new world."""

    def node(self, node_id: str) -> Any:
        """Return the Node by which an Envoy makes itself known to this server."""


class Serving(Protocol):
    """Starts a server; each has content of its own, as replicas do."""

    def __call__(self) -> AbstractAsyncContextManager[ServerUnderTest]:
        """Serve while the context is open."""
