"""What one Envoy had in force, as a snapshot: checked like a plan's resources, under its versions.

A version that Envoy tells is kept, so that an Envoy which moves between control plane and cache is
sent nothing that it holds. Where it tells none (endpoints, runtime), the version is the hash of
the content, as the control plane's own is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from control_plane.errors import PayloadError
from control_plane.resources.view import Resources
from control_plane.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
    SECRET,
    Snapshot,
    VersionedResource,
    make_snapshot,
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One resource that an Envoy has in force."""

    type_url: str
    message: Any
    version: str | None  # None: Envoy does not tell it


def make_world(recorded: Iterable[Recorded]) -> Snapshot:
    """Return the snapshot of a whole configuration.

    Raise PayloadError when it has no listener, or refers to what is not in it: an Envoy that has
    just started, or is between two updates, has nothing yet that another start could use.
    """
    items = tuple(recorded)

    def of(type_url: str) -> tuple[Any, ...]:
        return tuple(item.message for item in items if item.type_url == type_url)

    if not of(LISTENER):
        raise PayloadError(["there is no listener"])
    snapshot = make_snapshot(
        Resources(
            clusters=of(CLUSTER),
            endpoints=of(ENDPOINT),
            listeners=of(LISTENER),
            routes=of(ROUTE),
            runtimes=of(RUNTIME),
            extensions=of(EXTENSION),
            secrets=of(SECRET),
        )
    )
    told = {
        (item.type_url, _name(item)): item.version for item in items if item.version is not None
    }
    return replace(
        snapshot,
        resources=MappingProxyType(
            {
                type_url: MappingProxyType(
                    {
                        name: _with_version(resource, told.get((type_url, name)))
                        for name, resource in resources.items()
                    }
                )
                for type_url, resources in snapshot.resources.items()
            }
        ),
    )


def versions(snapshot: Snapshot) -> Mapping[str, Mapping[str, str]]:
    """Return every version by type URL and name, to compare two worlds."""
    return {
        type_url: {name: resource.version for name, resource in resources.items()}
        for type_url, resources in snapshot.resources.items()
    }


def _name(item: Recorded) -> str:
    return str(item.message.cluster_name if item.type_url == ENDPOINT else item.message.name)


def _with_version(resource: VersionedResource, version: str | None) -> VersionedResource:
    return resource if version is None else replace(resource, version=version)
