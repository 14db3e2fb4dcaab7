"""A client of any xDS server over gRPC, in both variants; every answer is awaited with a deadline.

A stream reads all the time into a queue: in grpc.aio a read that is given up ends the whole call,
and then nothing could be said of what comes after a silence.
"""

import asyncio
import contextlib
from collections import defaultdict
from types import TracebackType
from typing import Any, Literal, Self

import grpc
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import base_pb2, extension_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.runtime.v3 import rtds_pb2

Variant = Literal["sotw", "delta"]

WAIT_S = 5.0  # for an answer that must come
QUIET_S = 0.3  # for one that must not

_MESSAGES = {
    f"type.googleapis.com/{message.DESCRIPTOR.full_name}": message
    for message in (
        rtds_pb2.Runtime,
        cluster_pb2.Cluster,
        endpoint_pb2.ClusterLoadAssignment,
        extension_pb2.TypedExtensionConfig,
        listener_pb2.Listener,
        route_pb2.RouteConfiguration,
        secret_pb2.Secret,
    )
}
RUNTIME, CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, SECRET = TYPES = tuple(_MESSAGES)

_ADS = "envoy.service.discovery.v3.AggregatedDiscoveryService", "AggregatedResources"
_SERVICES = {
    RUNTIME: ("envoy.service.runtime.v3.RuntimeDiscoveryService", "Runtime"),
    CLUSTER: ("envoy.service.cluster.v3.ClusterDiscoveryService", "Clusters"),
    ENDPOINT: ("envoy.service.endpoint.v3.EndpointDiscoveryService", "Endpoints"),
    EXTENSION: ("envoy.service.extension.v3.ExtensionConfigDiscoveryService", "ExtensionConfigs"),
    LISTENER: ("envoy.service.listener.v3.ListenerDiscoveryService", "Listeners"),
    ROUTE: ("envoy.service.route.v3.RouteDiscoveryService", "Routes"),
    SECRET: ("envoy.service.secret.v3.SecretDiscoveryService", "Secrets"),
}
_FORMS: dict[Variant, tuple[str, Any, Any]] = {
    "sotw": ("Stream", discovery_pb2.DiscoveryRequest, discovery_pb2.DiscoveryResponse),
    "delta": ("Delta", discovery_pb2.DeltaDiscoveryRequest, discovery_pb2.DeltaDiscoveryResponse),
}


def make_node(node_id: str, **metadata: Any) -> Any:
    """Return an envoy.config.core.v3.Node."""
    node = base_pb2.Node(id=node_id)
    node.metadata.update(metadata)
    return node


EDGE = make_node("edge-1", role="edge", listen_address="127.0.0.1", listen_port=10000)


def bodies(response: Any) -> list[Any]:
    """Return the packed resources of a response of either variant, in its order."""
    return [getattr(item, "resource", item) for item in response.resources]


def messages(response: Any) -> list[Any]:
    """Return the resources of a response of either variant, in its order."""
    return [_MESSAGES[body.type_url].FromString(body.value) for body in bodies(response)]


def name_of(message: Any) -> str:
    """Return the name under which a resource is asked for."""
    return str(message.cluster_name if hasattr(message, "cluster_name") else message.name)


def names(response: Any) -> list[str]:
    """Return the names of a response's resources, in its order."""
    return [name_of(message) for message in messages(response)]


def removed(response: Any) -> list[str]:
    """Return what a response says is gone; the state of the world never names it."""
    return list(getattr(response, "removed_resources", ()))


class StreamEndedError(Exception):
    """An answer was awaited of a stream that ended without an error."""


class WireStream:
    """One stream of either variant, and what an Envoy would remember of it.

    `send` says exactly what it is told; `want`, `ack`, `nack` and `subscribe` say it as an Envoy
    would, so that a scenario reads the same in both variants.
    """

    def __init__(self, call: Any, variant: Variant, node: Any) -> None:
        self.variant: Variant = variant
        self._call = call
        self._node = node
        self._told_node = False
        self._wanted: dict[str, list[str]] = defaultdict(list)
        self._version: dict[str, str] = defaultdict(str)  # that was acknowledged last
        self._nonce: dict[str, str] = defaultdict(str)  # of the last response, whatever its fate
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._error: grpc.aio.AioRpcError | None = None
        self._reader = asyncio.create_task(self._read())

    async def send_bytes(self, request: bytes) -> None:
        """Send what may be no request at all."""
        await self._call.write(request)

    async def send(
        self, type_url: str = "", *, error: str | None = None, node: Any = None, **fields: Any
    ) -> None:
        """Send one request. Unless another node is given, the first one carries the stream's."""
        request = _FORMS[self.variant][1](type_url=type_url, **fields)
        if node is None and not self._told_node:
            node = self._node
        if node is not None:
            request.node.CopyFrom(node)
        self._told_node = True
        if error is not None:
            request.error_detail.message = error
        await self.send_bytes(request.SerializeToString())

    async def want(self, type_url: str, *wanted: str) -> None:
        """Say all the names that are wanted of a type from now on. No name at first: everything."""
        before, self._wanted[type_url] = self._wanted[type_url], list(wanted)
        if self.variant == "sotw":
            await self._send_state(type_url, self._version[type_url])
            return
        await self.send(
            type_url,
            resource_names_subscribe=[name for name in wanted if name not in before],
            resource_names_unsubscribe=[name for name in before if name not in wanted],
        )

    def wanted(self, type_url: str) -> tuple[str, ...]:
        """Return the names of a type that `want` said last."""
        return tuple(self._wanted[type_url])

    async def ack(self, response: Any) -> None:
        """Acknowledge a response."""
        type_url = response.type_url
        if self.variant == "sotw":
            self._version[type_url] = response.version_info
        await self._answer(response)

    async def nack(self, response: Any, message: str = "no good") -> None:
        """Refuse a response."""
        await self._answer(response, error=message)

    async def subscribe(self, type_url: str, *wanted: str) -> Any:
        """Say what is wanted of a type, and acknowledge and return the answer."""
        await self.want(type_url, *wanted)
        return await self.take()

    async def take(self) -> Any:
        """Acknowledge and return the next response."""
        response = await self.receive()
        await self.ack(response)
        return response

    async def receive(self, *, within_s: float = WAIT_S) -> Any:
        """Return the next response. Raise what ended the stream when there is none."""
        async with asyncio.timeout(within_s):
            response = await self._answers.get()
        if response is None:
            self._answers.put_nowait(None)  # the end stays the end
            raise self._error or StreamEndedError
        self._nonce[response.type_url] = response.nonce
        return response

    async def silence(self) -> None:
        """Fail when a response comes within a short time, or the stream ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(QUIET_S):
                response = await self._answers.get()
                raise AssertionError(f"expected silence, got {response}")

    async def code(self) -> Any:
        """Return the status that ends the stream."""
        async with asyncio.timeout(WAIT_S):
            return await self._call.code()

    async def ended_beside_a_write(self) -> bool:
        """Whether the server's word was lost: grpc.aio puts its own in place when a write fails."""
        return "execute_batch" in str(await self._call.debug_error_string())

    async def details(self) -> str:
        """Return the text that ends the stream."""
        async with asyncio.timeout(WAIT_S):
            return str(await self._call.details())

    async def close(self) -> None:
        """End the stream without a word, as an Envoy does that goes."""
        self._call.cancel()
        await self._reader

    async def _answer(self, response: Any, **fields: Any) -> None:
        type_url = response.type_url
        self._nonce[type_url] = response.nonce
        if self.variant == "sotw":
            await self._send_state(type_url, self._version[type_url], **fields)
        else:
            await self.send(type_url, response_nonce=response.nonce, **fields)

    async def _send_state(self, type_url: str, version: str, **fields: Any) -> None:
        await self.send(
            type_url,
            resource_names=self._wanted[type_url],
            version_info=version,
            response_nonce=self._nonce[type_url],
            **fields,
        )

    async def _read(self) -> None:
        try:
            async for response in self._call:
                self._answers.put_nowait(response)
        except grpc.aio.AioRpcError as error:
            self._error = error
        except asyncio.CancelledError:  # the call was cancelled, by `close` or with its channel
            if not self._call.cancelled():
                raise
        finally:
            self._answers.put_nowait(None)


class Wire:
    """A connection to a server, and the streams that were opened on it."""

    def __init__(self, address: str, credentials: Any = None) -> None:
        self._channel = (
            grpc.aio.insecure_channel(address)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials)
        )
        self._streams: list[WireStream] = []

    def open(
        self, variant: Variant, *, only_type: str | None = None, node: Any = EDGE
    ) -> WireStream:
        """Open an aggregated stream, or one of the service of one type."""
        service, noun = _ADS if only_type is None else _SERVICES[only_type]
        prefix, _, response = _FORMS[variant]
        call = self._channel.stream_stream(
            f"/{service}/{prefix}{noun}", response_deserializer=response.FromString
        )
        stream = WireStream(call(), variant, node)
        self._streams.append(stream)
        return stream

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for stream in self._streams:
            await stream.close()
        await self._channel.close()
