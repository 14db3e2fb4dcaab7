"""Small resources and a model of an Envoy for tests of the stream."""

import itertools
from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import base_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import any_pb2

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
)
from control_plane.stream import AdsStream

KINDS = {
    "rtds": RUNTIME,
    "cds": CLUSTER,
    "eds": ENDPOINT,
    "ecds": EXTENSION,
    "lds": LISTENER,
    "rds": ROUTE,
    "sds": SECRET,
}


def make_versions(**kinds: dict[str, str]) -> Snapshot:
    """Return a snapshot of names and versions, e.g. cds={"A": "v1"}; every cluster uses EDS."""
    resources = {
        KINDS[kind]: {
            name: VersionedResource(name, version, any_pb2.Any(type_url=KINDS[kind]))
            for name, version in versions.items()
        }
        for kind, versions in kinds.items()
    }
    return Snapshot(resources, {name: name for name in kinds.get("cds", {})})


def request(
    kind: str,
    *,
    subscribe: tuple[str, ...] = (),
    unsubscribe: tuple[str, ...] = (),
    held: dict[str, str] | None = None,
    nonce: str = "",
    error: str | None = None,
    node: str = "envoy-1",
) -> Any:
    """Return a DeltaDiscoveryRequest."""
    message = discovery_pb2.DeltaDiscoveryRequest(
        type_url=KINDS.get(kind, kind),
        resource_names_subscribe=subscribe,
        resource_names_unsubscribe=unsubscribe,
        initial_resource_versions=held or {},
        response_nonce=nonce,
    )
    if node:
        message.node.CopyFrom(base_pb2.Node(id=node))
    if error is not None:
        message.error_detail.message = error
    return message


class Client:
    """One stream and the requests of its Envoy; `said` maps a response to kind, names, removed."""

    def __init__(self, **kinds: dict[str, str]) -> None:
        numbers = itertools.count(1)
        self.stream = AdsStream(lambda: f"n{next(numbers)}")
        self.now = 0.0
        self.last: dict[str, Any] = {}
        self.events: list[Any] = []
        if kinds:
            self.stream.set_snapshot(make_versions(**kinds))

    def send(self, kind: str, **fields: Any) -> list[tuple[str, list[str], list[str]]]:
        """Send one request; return what is answered."""
        self.events += self.stream.receive(request(kind, **fields))
        return self.poll()

    def change(self, **kinds: dict[str, str]) -> list[tuple[str, list[str], list[str]]]:
        """Put a new snapshot in force; return what is sent."""
        self.stream.set_snapshot(make_versions(**kinds))
        return self.poll()

    def poll(self) -> list[tuple[str, list[str], list[str]]]:
        """Return what is sent now."""
        said = []
        for response in self.stream.responses(self.now):
            kind = next(k for k, url in KINDS.items() if url == response.type_url)
            self.last[kind] = response
            names = [resource.name for resource in response.resources]
            said.append((kind, names, list(response.removed_resources)))
        return said

    def ack(self, kind: str, **fields: Any) -> list[tuple[str, list[str], list[str]]]:
        """Acknowledge the last response of a kind."""
        return self.send(kind, nonce=self.last[kind].nonce, **fields)

    def nack(self, kind: str, message: str = "bad", **fields: Any) -> Any:
        """Refuse the last response of a kind."""
        return self.send(kind, nonce=self.last[kind].nonce, error=message, **fields)


def make_cluster(name: str = "A", **fields: Any) -> Any:
    """Return an EDS cluster that our checks accept."""
    cluster = cluster_pb2.Cluster(name=name, type=cluster_pb2.Cluster.EDS, **fields)
    cluster.connect_timeout.FromSeconds(1)
    for priority in (0, 1):
        threshold = cluster.circuit_breakers.thresholds.add(priority=priority)
        for field in ("max_connections", "max_pending_requests", "max_requests", "max_retries"):
            getattr(threshold, field).value = 1
    return cluster


def make_assignment(name: str = "A", *weights: int, path: str = "/run/{}.sock") -> Any:
    """Return endpoints on sockets with these weights."""
    assignment = endpoint_pb2.ClusterLoadAssignment(cluster_name=name)
    if weights:
        locality = assignment.endpoints.add()
        for index, weight in enumerate(weights):
            host = locality.lb_endpoints.add()
            host.endpoint.address.pipe.path = path.format(index)
            host.load_balancing_weight.value = weight
    return assignment
