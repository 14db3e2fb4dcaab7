"""A consistent set of resources with a version each.

A version is a hash of deterministic bytes: equal content has the same version on every replica
and after every restart, so an Envoy that reconnects is sent nothing that it holds already.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from envoy.config.endpoint.v3 import endpoint_pb2
from google.protobuf import any_pb2

from control_plane.checks import check_message, check_set, eds_name
from control_plane.errors import PayloadError
from control_plane.resources.view import Resources

_PREFIX = "type.googleapis.com/envoy.config."
CLUSTER = f"{_PREFIX}cluster.v3.Cluster"
ENDPOINT = f"{_PREFIX}endpoint.v3.ClusterLoadAssignment"
LISTENER = f"{_PREFIX}listener.v3.Listener"
ROUTE = f"{_PREFIX}route.v3.RouteConfiguration"
EXTENSION = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
RUNTIME = "type.googleapis.com/envoy.service.runtime.v3.Runtime"
SECRET = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"  # noqa: S105 a type

# Make before break: what others refer to goes out first, and is removed last. Runtime comes before
# all, so that a new cluster never stands without its thresholds; a secret is asked for by what
# needs it, and waits for nothing.
TYPE_URLS = (RUNTIME, CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET)
WILDCARD_TYPES = frozenset({CLUSTER, LISTENER})  # an empty first subscription means all


@dataclass(frozen=True, slots=True)
class VersionedResource:
    """One resource, serialized once for all streams."""

    name: str
    version: str
    body: Any  # google.protobuf.Any


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Resources by type URL and name, and which endpoints each cluster needs."""

    resources: Mapping[str, Mapping[str, VersionedResource]]
    eds_names: Mapping[str, str]  # cluster name → name of its endpoints

    def of_type(self, type_url: str) -> Mapping[str, VersionedResource]:
        """Return the resources of one type."""
        return self.resources.get(type_url, {})


def messages_by_type(resources: Resources) -> dict[str, tuple[Any, ...]]:
    """Return the messages of every served type, in the order in which types are sent."""
    return {
        RUNTIME: resources.runtimes,
        CLUSTER: resources.clusters,
        ENDPOINT: resources.endpoints,
        EXTENSION: resources.extensions,
        LISTENER: resources.listeners,
        ROUTE: resources.routes,
        SECRET: resources.secrets,
    }


def make_snapshot(resources: Resources) -> Snapshot:
    """Return the snapshot of checked resources. Raise PayloadError when a check refuses them."""
    return SnapshotMaker().make(resources)


class SnapshotMaker:
    """Makes one snapshot after the other; a message that is the same object keeps its version.

    What was checked and hashed is not checked and hashed again.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[str, int], _Made] = {}

    def make(self, resources: Resources) -> Snapshot:
        """Return the snapshot, as `make_snapshot` does."""
        made = {
            type_url: [self._look_up(type_url, message) for message in messages]
            for type_url, messages in messages_by_type(resources).items()
        }
        self._made = {
            (type_url, id(item.message)): item for type_url, items in made.items() for item in items
        }
        violations = [text for items in made.values() for item in items for text in item.violations]
        violations += check_set(resources)
        if violations:
            raise PayloadError(violations)
        by_type = {
            type_url: MappingProxyType(
                {
                    item.resource.name: item.resource
                    for item in sorted(items, key=lambda item: item.resource.name)
                }
            )
            for type_url, items in made.items()
        }
        eds_names = {cluster.name: eds_name(cluster) for cluster in resources.clusters}
        return Snapshot(MappingProxyType(by_type), MappingProxyType(eds_names))

    def _look_up(self, type_url: str, message: Any) -> "_Made":
        known = self._made.get((type_url, id(message)))
        if known is not None and known.message is message:
            return known
        violations = check_message(message)
        return _Made(message, violations, _versioned(_name(type_url, message), message))


@dataclass(frozen=True, slots=True)
class _Made:
    """A message with its version; holds the message, so that no other gets its identity."""

    message: Any
    violations: tuple[str, ...]
    resource: VersionedResource


def empty_assignment(name: str) -> VersionedResource:
    """Return the endpoints of a cluster that is not there: explicitly none."""
    return _versioned(name, endpoint_pb2.ClusterLoadAssignment(cluster_name=name))


def _name(type_url: str, message: Any) -> str:
    return str(message.cluster_name if type_url == ENDPOINT else message.name)


def _versioned(name: str, message: Any) -> VersionedResource:
    body = any_pb2.Any()
    body.Pack(message, deterministic=True)
    return VersionedResource(name, hashlib.sha256(body.value).hexdigest()[:16], body)
