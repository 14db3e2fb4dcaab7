"""The in-process registry of `wattmesh up`: Consul's part without Consul.

Agents register in it through the interface that they use for Consul, and it answers in the JSON
that Consul answers, so that one parser reads both. Like Consul, a check starts as
registered and turns critical when no heartbeat came for a TTL. It keeps nothing on disk and listens
nowhere. A heartbeat that changes nothing rings no bell.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from control_plane.catalog import Catalog, CatalogParser
from control_plane.guard import CatalogRead
from engines.registrar import CheckStatus, Registration, UnknownServiceError

SOURCE = "embedded registry"


@dataclass(slots=True)
class _Service:
    registration: Registration
    status: str
    note: str
    expires_at_s: float


class EmbeddedRegistry:
    """A registrar and a catalog source at once. Used from one event loop."""

    def __init__(self) -> None:
        self._services: dict[str, _Service] = {}
        self._changed = asyncio.Event()

    async def register(self, registration: Registration) -> None:
        """Put an engine in, or replace it together with its check."""
        self._services[registration.id] = _Service(
            registration=registration,
            status=registration.status,
            note="",
            expires_at_s=_now_s() + registration.ttl_s,
        )
        self._changed.set()

    async def heartbeat(self, service_id: str, status: CheckStatus, note: str) -> None:
        """Note that an engine's agent lives. Raise UnknownServiceError for one not registered."""
        service = self._services.get(service_id)
        if service is None:
            raise UnknownServiceError(f"no service {service_id!r} is registered here")
        service.expires_at_s = _now_s() + service.registration.ttl_s
        if (service.status, service.note) != (status, note):
            service.status, service.note = status, note
            self._changed.set()

    async def deregister(self, service_id: str) -> None:
        """Take an engine out; one that is not in is no error."""
        if self._services.pop(service_id, None) is not None:
            self._changed.set()

    async def watch(self) -> AsyncIterator[CatalogRead]:
        """Yield the catalog now and after every change of it, until cancelled."""
        index = 0
        last: Catalog | None = None
        parser = CatalogParser(SOURCE)
        while True:
            self._changed.clear()
            self._expire(_now_s())
            catalog = parser.parse(self.answer())
            if catalog != last:
                last, index = catalog, index + 1
                yield CatalogRead(catalog=catalog, index=index)
                continue  # a change during the yield is seen before waiting
            await self._wait_for_change()

    def answer(self) -> bytes:
        """Return what Consul's /v1/health/service/wattmesh-engine would answer."""
        return json.dumps([_entry(service) for service in self._services.values()]).encode()

    def _expire(self, now_s: float) -> None:
        for service in self._services.values():
            if service.expires_at_s <= now_s and service.status != "critical":
                service.status, service.note = "critical", "TTL expired"

    async def _wait_for_change(self) -> None:
        expiries = [s.expires_at_s for s in self._services.values() if s.status != "critical"]
        timeout_s = max(0.0, min(expiries) - _now_s()) if expiries else None
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _entry(service: _Service) -> dict[str, object]:
    registration = service.registration
    return {
        "Node": {"Node": SOURCE, "Address": registration.address},
        "Service": {
            "ID": registration.id,
            "Service": registration.service,
            "Address": registration.address,
            "Port": registration.port,
            "Tags": list(registration.tags),
            "Meta": dict(registration.meta),
        },
        "Checks": [{"CheckID": f"service:{registration.id}", "Status": service.status}],
    }
