"""A consistent set of resources with a version each.

A version is a hash of deterministic bytes: equal content has the same version on every replica
and after every restart, so an Envoy that reconnects is sent nothing that it holds already.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from envoy.config.endpoint.v3 import endpoint_pb2
from google.protobuf import any_pb2

from control_plane.checks import check_resources, eds_name
from control_plane.errors import PayloadError
from control_plane.resources.view import Resources

_PREFIX = "type.googleapis.com/envoy.config."
CLUSTER = f"{_PREFIX}cluster.v3.Cluster"
ENDPOINT = f"{_PREFIX}endpoint.v3.ClusterLoadAssignment"
LISTENER = f"{_PREFIX}listener.v3.Listener"
ROUTE = f"{_PREFIX}route.v3.RouteConfiguration"
EXTENSION = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
RUNTIME = "type.googleapis.com/envoy.service.runtime.v3.Runtime"

# Make before break: what others refer to goes out first, and is removed last. Runtime comes before
# all, so that a new cluster never stands without its thresholds.
TYPE_URLS = (RUNTIME, CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE)
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
    }


def make_snapshot(resources: Resources) -> Snapshot:
    """Return the snapshot of checked resources. Raise PayloadError when a check refuses them."""
    violations = check_resources(resources)
    if violations:
        raise PayloadError(violations)
    by_type = {
        type_url: _versioned((_name(type_url, message), message) for message in messages)
        for type_url, messages in messages_by_type(resources).items()
    }
    eds_names = {cluster.name: eds_name(cluster) for cluster in resources.clusters}
    return Snapshot(MappingProxyType(by_type), MappingProxyType(eds_names))


def empty_assignment(name: str) -> VersionedResource:
    """Return the endpoints of a cluster that is not there: explicitly none."""
    (resource,) = _versioned(
        [(name, endpoint_pb2.ClusterLoadAssignment(cluster_name=name))]
    ).values()
    return resource


def _name(type_url: str, message: Any) -> str:
    return str(message.cluster_name if type_url == ENDPOINT else message.name)


def _versioned(messages: Iterable[tuple[str, Any]]) -> Mapping[str, VersionedResource]:
    versioned = {}
    for name, message in sorted(messages, key=lambda item: item[0]):
        body = any_pb2.Any()
        body.Pack(message, deterministic=True)
        version = hashlib.sha256(body.value).hexdigest()[:16]
        versioned[name] = VersionedResource(name, version, body)
    return MappingProxyType(versioned)
