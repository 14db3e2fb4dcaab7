"""A recorded type as a document: a DiscoveryResponse in proto3 JSON, resources with versions. Pure.

Envoy's own file subscription (path_config_source) parses the same form, and people can read it.
"""

import json
from collections.abc import Iterator
from typing import Any

from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import any_pb2, json_format

from control_plane.errors import WattmeshError, shown
from control_plane.lkg.world import Recorded
from control_plane.resources import messages
from control_plane.snapshot import Snapshot
from control_plane.variants import version_of


class DocumentError(WattmeshError):
    """A document that does not hold resources of its type."""


def encode(world: Snapshot, type_url: str) -> bytes:
    """Return the document of one type; equal resources give equal bytes."""
    resources = tuple(world.of_type(type_url).values())
    response = discovery_pb2.DiscoveryResponse(
        type_url=type_url, version_info=version_of(resources)
    )
    for item in resources:
        wrapped = discovery_pb2.Resource(name=item.name, version=item.version, resource=item.body)
        response.resources.add().Pack(wrapped, deterministic=True)
    value = json_format.MessageToDict(response, preserving_proto_field_name=True)
    return json.dumps(value, indent=1, sort_keys=True).encode()


def decode(data: bytes, type_url: str) -> tuple[Recorded, ...]:
    """Return the resources of a document. Raise DocumentError when it holds something else."""
    try:
        response = discovery_pb2.DiscoveryResponse()
        json_format.ParseDict(json.loads(data), response)
        return tuple(_recorded(response, type_url))
    except (ValueError, KeyError, TypeError, json_format.ParseError) as error:
        raise DocumentError(
            f"{type(error).__name__} {shown(str(error))}, expected a DiscoveryResponse of "
            f"{type_url}"
        ) from error


def _recorded(response: Any, type_url: str) -> Iterator[Recorded]:
    if response.type_url != type_url:
        raise ValueError(f"type_url is {response.type_url!r}")
    for packed in response.resources:
        wrapped = discovery_pb2.Resource()
        if not packed.Unpack(wrapped) or wrapped.resource.type_url != type_url:
            raise ValueError(f"resource {wrapped.name!r} is of type {wrapped.resource.type_url!r}")
        body = any_pb2.Any()
        body.CopyFrom(wrapped.resource)
        yield Recorded(type_url, messages.unpacked(body), wrapped.version)
