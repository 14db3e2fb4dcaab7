"""An Envoy as far as the order between types concerns it: it asks for what it is told to need."""

from typing import Any

from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)

from tests.support.xds_wire import (
    CLUSTER,
    ENDPOINT,
    LISTENER,
    ROUTE,
    WireStream,
    messages,
    names,
    removed,
)
from tests.xds.blackbox.settling import settled

_MOST_PASSES = 10


class EnvoyModel:
    """Follows a stream, and fails when a route names a cluster that is not there with endpoints."""

    def __init__(self, stream: WireStream) -> None:
        self.stream = stream
        self.log: list[str] = []  # type URLs, in the order of the responses
        self._known: dict[str, dict[str, Any]] = {
            type_url: {} for type_url in (CLUSTER, ENDPOINT, LISTENER, ROUTE)
        }

    def known(self, type_url: str) -> set[str]:
        """Return the names of a type that it holds."""
        return set(self._known[type_url])

    async def start(self) -> None:
        """Ask for clusters and listeners, and follow."""
        await self.stream.want(CLUSTER)
        await self.stream.want(LISTENER)
        await self.follow()

    async def follow(self) -> list[str]:
        """Take what comes until the stream rests; return the types in their order."""
        before = len(self.log)
        for _ in range(_MOST_PASSES):
            responses = await settled(self.stream)
            if not responses:
                return self.log[before:]
            for response in responses:
                await self._take(response)
        raise AssertionError(f"no rest, {self.log[-10:]}")

    async def _take(self, response: Any) -> None:
        type_url = response.type_url
        self.log.append(type_url)
        known = self._known[type_url]
        if self.stream.variant == "sotw" and type_url in (CLUSTER, LISTENER):
            known.clear()  # what is not in the response is gone
        known.update(zip(names(response), messages(response), strict=True))
        for name in removed(response):
            known.pop(name, None)
        self._check()
        if type_url == CLUSTER:  # Envoy's ACK comes after its request for the endpoints
            await self._ask(ENDPOINT, self.known(CLUSTER))
        await self.stream.ack(response)
        if type_url == LISTENER:
            await self._ask(ROUTE, self._route_names())

    async def _ask(self, type_url: str, wanted: set[str]) -> None:
        for name in self.known(type_url) - wanted:
            del self._known[type_url][name]
        if wanted != set(self.stream.wanted(type_url)):
            await self.stream.want(type_url, *sorted(wanted))

    def _route_names(self) -> set[str]:
        found = set()
        for listener in self._known[LISTENER].values():
            manager = http_connection_manager_pb2.HttpConnectionManager()
            for chain in listener.filter_chains:
                if chain.filters[0].typed_config.Unpack(manager):
                    found.add(manager.rds.route_config_name)
        return found

    def _check(self) -> None:
        used = {
            route.route.cluster
            for routes in self._known[ROUTE].values()
            for host in routes.virtual_hosts
            for route in host.routes
        }
        assert used <= self.known(CLUSTER), f"used and not there, after {self.log}"
        assert used <= self.known(ENDPOINT), f"used without endpoints, after {self.log}"
