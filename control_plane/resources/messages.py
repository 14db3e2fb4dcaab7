"""From proto3 JSON, the form of Envoy's own documentation, to messages.

Clusters, listeners and routes are written as JSON-like values and parsed once per changed plan;
only endpoints, which move with every weight, are built as messages directly. Importing an
extension's module is what lets its "@type" be parsed.
"""

from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.access_loggers.stream.v3 import stream_pb2 as _stream  # noqa: F401
from envoy.extensions.filters.http.json_to_metadata.v3 import (  # noqa: F401
    json_to_metadata_pb2 as _json_to_metadata,
)
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2 as _rbac  # noqa: F401
from envoy.extensions.filters.http.router.v3 import router_pb2 as _router  # noqa: F401
from envoy.extensions.filters.listener.tls_inspector.v3 import (  # noqa: F401
    tls_inspector_pb2 as _tls_inspector,
)
from envoy.extensions.filters.network.http_connection_manager.v3 import (  # noqa: F401
    http_connection_manager_pb2 as _http_connection_manager,
)
from envoy.extensions.http.early_header_mutation.header_mutation.v3 import (  # noqa: F401
    header_mutation_pb2 as _header_mutation,
)
from envoy.extensions.retry.host.previous_hosts.v3 import (  # noqa: F401
    previous_hosts_pb2 as _previous_hosts,
)
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2 as _tls  # noqa: F401
from envoy.extensions.upstreams.http.v3 import (  # noqa: F401
    http_protocol_options_pb2 as _http_protocol_options,
)
from envoy.service.runtime.v3 import rtds_pb2
from google.protobuf import any_pb2, json_format, symbol_database
from xds.type.v3 import typed_struct_pb2 as _typed_struct  # noqa: F401

Json = dict[str, Any]

TYPE = "type.googleapis.com/"
ADS: Json = {"ads": {}, "resource_api_version": "V3"}

ClusterLoadAssignment = endpoint_pb2.ClusterLoadAssignment


def seconds(value_s: float) -> str:
    """Return a google.protobuf.Duration in JSON form."""
    return f"{value_s:.3f}s"


def cluster(value: Json) -> Any:
    """Return the Cluster of its JSON form."""
    return _parse(value, cluster_pb2.Cluster())


def listener(value: Json) -> Any:
    """Return the Listener of its JSON form."""
    return _parse(value, listener_pb2.Listener())


def route_configuration(value: Json) -> Any:
    """Return the RouteConfiguration of its JSON form."""
    return _parse(value, route_pb2.RouteConfiguration())


def extension(value: Json) -> Any:
    """Return the TypedExtensionConfig of its JSON form."""
    return _parse(value, extension_pb2.TypedExtensionConfig())


def secret(value: Json) -> Any:
    """Return the Secret of its JSON form."""
    return _parse(value, secret_pb2.Secret())


def typed_struct(type_url: str, value: Json) -> Json:
    """Return an extension's configuration as Envoy itself parses it.

    For fields that Envoy has and xds-protos does not know yet.
    """
    return {"@type": f"{TYPE}xds.type.v3.TypedStruct", "type_url": type_url, "value": value}


def runtime(name: str, layer: Json) -> Any:
    """Return the Runtime of a layer's keys."""
    message = rtds_pb2.Runtime(name=name)
    message.layer.update(layer)
    return message


def message(value: Json) -> Any:
    """Return the message of a JSON form that names its type in "@type".

    Raise json_format.ParseError when it is none, or of a type that is not known here.
    """
    packed = any_pb2.Any()
    json_format.ParseDict(value, packed)
    return unpacked(packed)


def unpacked(packed: Any) -> Any:
    """Return the message in an Any, whose type must be known here."""
    content = symbol_database.Default().GetSymbol(packed.TypeName())()
    packed.Unpack(content)
    _settle(content)
    return content


def _parse(value: Json, message: Any) -> Any:
    json_format.ParseDict(value, message)
    _settle(message)
    return message


def _settle(message: Any) -> None:
    """Serialize every nested Any again, deterministically.

    The parser packs them with map fields in arbitrary order, which would give equal content a
    new version after each restart.
    """
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            parts = (
                value.values() if field.message_type.fields_by_name["value"].message_type else ()
            )
        else:
            parts = value if field.is_repeated else (value,)
        for part in parts:
            if isinstance(part, any_pb2.Any):
                part.Pack(unpacked(part), deterministic=True)
            else:
                _settle(part)
