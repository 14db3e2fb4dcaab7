"""Which Envoy is asking, and the resources it gets."""

from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf import json_format

from control_plane.errors import InputError, Problem, shown

_ROLES = ("edge", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the resources of an Envoy depend on besides the plan.

    Equal edges share one view, and so one rendering: node_id is empty for them.
    """

    role: Literal["edge", "node"]
    node_id: str = ""
    listen_address: str = ""  # of an edge; a node's listener stands in the catalog
    listen_port: int = 0
    tls: bool = False  # the edge's bootstrap holds a certificate
    tls_dir: str = ""  # on the Envoy's host: its certificate of the mesh; empty = none


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Protobuf messages of Envoy's v3 API, each tuple sorted by resource name."""

    clusters: tuple[Any, ...] = ()  # Cluster
    endpoints: tuple[Any, ...] = ()  # ClusterLoadAssignment
    listeners: tuple[Any, ...] = ()  # Listener
    routes: tuple[Any, ...] = ()  # RouteConfiguration
    runtimes: tuple[Any, ...] = ()  # Runtime
    extensions: tuple[Any, ...] = ()  # TypedExtensionConfig
    secrets: tuple[Any, ...] = ()  # Secret


def parse_view(node: Any) -> View:
    """Return the view of an envoy.config.core.v3.Node. Raise InputError when it says too little.

    The role and, for edges, the listener come from the node's metadata, which our bootstrap
    writes. They are untrusted.
    """
    metadata = json_format.MessageToDict(node.metadata)
    problems: list[Problem] = []

    def report(path: str, value: object, expected: str) -> None:
        problems.append(
            Problem(
                source=f"Envoy {shown(node.id)}",
                path=path,
                value="missing" if value is None else shown(value),
                expected=expected,
                meanwhile="this Envoy is sent nothing",
            )
        )

    role = metadata.get("role")
    address, port = metadata.get("listen_address"), metadata.get("listen_port")
    if role not in _ROLES:
        report("node.metadata.role", role, "edge or node")
    if role == "edge" and not (isinstance(address, str) and 0 < len(address) <= 64):
        report("node.metadata.listen_address", address, "an IP address")
    if role == "edge" and not (isinstance(port, float) and port.is_integer() and 0 < port < 65536):
        report("node.metadata.listen_port", port, "a port from 1 to 65535")
    tls_dir = metadata.get("tls_dir", "")
    if not _is_directory_path(tls_dir):
        report("node.metadata.tls_dir", tls_dir, "an absolute path, or nothing")
    if problems:
        raise InputError(problems)
    if role == "node":
        return View(role="node", node_id=node.id, tls_dir=tls_dir)
    return View(
        role="edge",
        listen_address=str(address),
        listen_port=int(port or 0),
        tls=metadata.get("tls") is True,
        tls_dir=tls_dir,
    )


def _is_directory_path(value: object) -> bool:
    return isinstance(value, str) and (
        value == "" or (value.startswith("/") and value.isprintable() and len(value) <= 1024)
    )
