"""A consistent set of resources with a version each.

A version is a hash of deterministic bytes: equal content has the same version on every replica
and after every restart, so an Envoy that reconnects is sent nothing that it holds already.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from google.protobuf import any_pb2

from control_plane.checks import check_resources, eds_name
from control_plane.errors import PayloadError
from control_plane.resources.view import Resources

_PREFIX = "type.googleapis.com/envoy.config."
CLUSTER = f"{_PREFIX}cluster.v3.Cluster"
ENDPOINT = f"{_PREFIX}endpoint.v3.ClusterLoadAssignment"
LISTENER = f"{_PREFIX}listener.v3.Listener"
ROUTE = f"{_PREFIX}route.v3.RouteConfiguration"

# Make before break: what others refer to goes out first, and is removed last.
TYPE_URLS = (CLUSTER, ENDPOINT, LISTENER, ROUTE)
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


def make_snapshot(resources: Resources) -> Snapshot:
    """Return the snapshot of checked resources. Raise PayloadError when a check refuses them."""
    violations = check_resources(resources)
    if violations:
        raise PayloadError(violations)
    by_type = {
        CLUSTER: _versioned((cluster.name, cluster) for cluster in resources.clusters),
        ENDPOINT: _versioned((item.cluster_name, item) for item in resources.endpoints),
        LISTENER: _versioned((listener.name, listener) for listener in resources.listeners),
        ROUTE: _versioned((routes.name, routes) for routes in resources.routes),
    }
    eds_names = {cluster.name: eds_name(cluster) for cluster in resources.clusters}
    return Snapshot(MappingProxyType(by_type), MappingProxyType(eds_names))


def _versioned(messages: Iterable[tuple[str, Any]]) -> Mapping[str, VersionedResource]:
    versioned = {}
    for name, message in sorted(messages, key=lambda item: item[0]):
        body = any_pb2.Any()
        body.Pack(message, deterministic=True)
        version = hashlib.sha256(body.value).hexdigest()[:16]
        versioned[name] = VersionedResource(name, version, body)
    return MappingProxyType(versioned)
