"""An Envoy's bootstrap: the template of its role with this host's values set.

Values are set in the parsed document, never pasted into its text.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from control_plane.addresses import HostPort, UnixSocket
from control_plane.resources.edge import CERTIFICATE


def render_bootstrap(
    *,
    role: str,
    node_id: str,
    xds_address: UnixSocket | HostPort,
    admin_socket: str,
    listen: HostPort | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
) -> str:
    """Return the YAML bootstrap of an Envoy. An edge needs `listen`; paths are used as given."""
    bootstrap: dict[str, Any] = yaml.safe_load(template_path(role).read_text(encoding="utf-8"))
    bootstrap["node"]["id"] = node_id
    bootstrap["admin"]["address"]["pipe"]["path"] = admin_socket
    static = bootstrap["static_resources"]
    _set_xds_address(static["clusters"][0], xds_address)
    if role == "edge":
        if listen is None:
            raise ValueError("an edge needs an address to listen on")
        metadata = bootstrap["node"]["metadata"]
        metadata["listen_address"], metadata["listen_port"] = listen.host, listen.port
        metadata["tls"] = tls_cert is not None
        if tls_cert is not None and tls_key is not None:
            static["secrets"] = [_certificate(tls_cert, tls_key)]
    return yaml.dump(bootstrap, Dumper=_QuotingDumper, sort_keys=False)


class _QuotingDumper(yaml.SafeDumper):
    """Quotes every text: Envoy's YAML reads a plain n or y as a boolean, Python's does not."""


_QuotingDumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def template_path(role: str) -> Path:
    """Return the template of a role: beside the source, or where an installed wheel put it."""
    name = f"{role}.yaml"
    candidates = (
        Path(__file__).parents[1] / "envoy" / name,
        Path(sys.prefix) / "share" / "wattmesh" / "envoy" / name,
    )
    for path in candidates:
        if path.is_file():
            return path
    raise FileNotFoundError(f"no bootstrap template at {' or '.join(map(str, candidates))}")


def _set_xds_address(cluster: dict[str, Any], address: UnixSocket | HostPort) -> None:
    if isinstance(address, UnixSocket):
        value: dict[str, Any] = {"pipe": {"path": address.path}}
    else:
        value = {"socket_address": {"address": address.host, "port_value": address.port}}
        cluster["type"] = "STATIC" if address.is_ip else "STRICT_DNS"
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"] = value


def _certificate(cert: str, key: str) -> dict[str, Any]:
    return {
        "name": CERTIFICATE,
        "tls_certificate": {
            "certificate_chain": {"filename": cert},
            "private_key": {"filename": key},
        },
    }
