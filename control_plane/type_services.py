"""The discovery services of one type each (CDS, EDS, LDS, RDS, RTDS, ECDS, SDS), in both variants.

They share everything with the aggregated service but the type, which the method implies. Nothing
orders types that come on streams of their own: use ADS where order matters.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import grpc
from envoy.service.discovery.v3 import discovery_pb2

from control_plane.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
    SECRET,
)
from control_plane.variants import DELTA, STATE_OF_THE_WORLD, Variant

Serve = Callable[..., AsyncGenerator[Any, None]]  # requests, context, variant, only_type

_SERVICES = {
    CLUSTER: ("envoy.service.cluster.v3.ClusterDiscoveryService", "Clusters"),
    ENDPOINT: ("envoy.service.endpoint.v3.EndpointDiscoveryService", "Endpoints"),
    LISTENER: ("envoy.service.listener.v3.ListenerDiscoveryService", "Listeners"),
    ROUTE: ("envoy.service.route.v3.RouteDiscoveryService", "Routes"),
    RUNTIME: ("envoy.service.runtime.v3.RuntimeDiscoveryService", "Runtime"),
    EXTENSION: ("envoy.service.extension.v3.ExtensionConfigDiscoveryService", "ExtensionConfigs"),
    SECRET: ("envoy.service.secret.v3.SecretDiscoveryService", "Secrets"),
}


def type_services(serve: Serve) -> tuple[Any, ...]:
    """Return the gRPC handlers of every type's service."""
    return tuple(
        grpc.method_handlers_generic_handler(
            service,
            {
                f"Delta{noun}": grpc.stream_stream_rpc_method_handler(
                    _behavior(serve, DELTA, type_url),
                    request_deserializer=discovery_pb2.DeltaDiscoveryRequest.FromString,
                    response_serializer=discovery_pb2.DeltaDiscoveryResponse.SerializeToString,
                ),
                f"Stream{noun}": grpc.stream_stream_rpc_method_handler(
                    _behavior(serve, STATE_OF_THE_WORLD, type_url),
                    request_deserializer=discovery_pb2.DiscoveryRequest.FromString,
                    response_serializer=discovery_pb2.DiscoveryResponse.SerializeToString,
                ),
            },
        )
        for type_url, (service, noun) in _SERVICES.items()
    )


def _behavior(serve: Serve, variant: Variant, type_url: str) -> Callable[..., Any]:
    """A plain function: grpc.aio looks at it to tell generators from coroutines."""

    async def behavior(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async with contextlib.aclosing(serve(requests, context, variant, type_url)) as responses:
            async for response in responses:
                yield response

    return behavior
