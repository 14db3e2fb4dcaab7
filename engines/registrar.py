"""Registration of engines with the local Consul agent.

Always with the agent, never with the catalog: anti-entropy deletes what the agent does not know.
The note of a check is constant per state, since every change of it is a write of the Raft log.
EnableTagOverride stays off, as it is where it is not given: what the agent says of tags counts.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol

import aiohttp
from consul import ConsulException
from consul.aio import Consul

from control_plane.catalog import ENGINE_SERVICE
from control_plane.errors import WattmeshError, shown

CheckStatus = Literal["passing", "warning", "critical"]
# Consul's reaper runs each 30 s and takes at least a minute; this outlasts any model load.
DEREGISTER_AFTER = "30m"
# What Consul's versions answer to a heartbeat of a check that they do not know.
_UNKNOWN = ("does not have associated TTL", "nknown check", "nknown service")


class RegistryError(WattmeshError):
    """The registry could not be reached or refused the request."""


class UnknownServiceError(RegistryError):
    """The registry does not know the service: it was restarted empty, or somebody removed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One service of one host, as Consul's agent takes it."""

    id: str
    address: str
    port: int
    ttl_s: float
    status: CheckStatus = "critical"  # of the check until its first heartbeat
    service: str = ENGINE_SERVICE
    tags: tuple[str, ...] = ()
    meta: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class Registrar(Protocol):
    """What the agent needs of a registry."""

    async def register(self, registration: Registration) -> None:
        """Add or replace a service with its TTL check. Raise RegistryError."""

    async def heartbeat(self, service_id: str, status: CheckStatus, note: str) -> None:
        """Refresh a check. Raise UnknownServiceError when it must be registered again."""

    async def deregister(self, service_id: str) -> None:
        """Remove a service; one that is not there is no error. Raise RegistryError."""


class ConsulRegistrar:
    """A Registrar over the HTTP API of the local Consul agent."""

    def __init__(self, client: Consul) -> None:
        self._client = client

    async def register(self, registration: Registration) -> None:
        """Add or replace a service with its TTL check."""
        check = {
            "CheckID": _check_id(registration.id),
            "Name": "engine answers",
            "TTL": f"{registration.ttl_s:g}s",
            "Status": registration.status,
            "DeregisterCriticalServiceAfter": DEREGISTER_AFTER,
        }
        await _call(
            self._client.agent.service.register(
                registration.service,
                service_id=registration.id,
                address=registration.address,
                port=registration.port,
                tags=list(registration.tags),
                meta=dict(registration.meta),
                check=check,
                replace_existing_checks=True,
            )
        )

    async def heartbeat(self, service_id: str, status: CheckStatus, note: str) -> None:
        """Refresh a check."""
        checks = self._client.agent.check
        update = {
            "passing": checks.ttl_pass,
            "warning": checks.ttl_warn,
            "critical": checks.ttl_fail,
        }[status]
        if not await _call(update(_check_id(service_id), notes=note)):
            raise UnknownServiceError(f"Consul knows no service {shown(service_id)}")

    async def deregister(self, service_id: str) -> None:
        """Remove a service; one that is not there is no error."""
        try:
            await _call(self._client.agent.service.deregister(service_id))
        except UnknownServiceError:
            return


async def _call(request: Awaitable[Any]) -> Any:
    """Await one request of py-consul and turn its failures into ours."""
    try:
        return await request
    except ConsulException as error:
        text = str(error)
        if any(phrase in text for phrase in _UNKNOWN):
            raise UnknownServiceError(text) from error
        raise RegistryError(f"Consul refused the request: {text}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise RegistryError(
            f"Consul cannot be reached: {str(error) or type(error).__name__}"
        ) from error


def _check_id(service_id: str) -> str:
    return f"service:{service_id}"
