"""An Envoy's bootstrap: the template of its role with this host's values set.

Values are set in the parsed document, never pasted into its text.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from control_plane.addresses import HostPort, UnixSocket
from control_plane.bootstrap_tls import BootstrapTls, over_tls
from control_plane.control_plane_clusters import come_after_runtime, control_plane_clusters
from control_plane.resources.edge import CERTIFICATE


def render_bootstrap(
    *,
    role: str,
    node_id: str,
    xds_addresses: Sequence[UnixSocket | HostPort],
    admin_socket: str,
    lkg: str | None = None,
    mesh: BootstrapTls | None = None,
    listen: HostPort | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
) -> str:
    """Return the YAML bootstrap of an Envoy. An edge needs `listen`; paths are used as given.

    `lkg` is the directory of this host's last-known-good cache, `mesh` its certificate among us
    (`tls_cert` and `tls_key` are what an edge shows to callers). Raise AddressError when no Envoy
    could use these control planes together.
    """
    bootstrap: dict[str, Any] = yaml.safe_load(template_path(role).read_text(encoding="utf-8"))
    bootstrap["node"]["id"] = node_id
    bootstrap["admin"]["address"]["pipe"]["path"] = admin_socket
    static = bootstrap["static_resources"]
    template, *others = static["clusters"]
    own = control_plane_clusters(template, xds_addresses, lkg)
    if mesh is not None:
        bootstrap["node"]["metadata"]["tls_dir"] = str(mesh.directory)
        own = [over_tls(item, mesh) if "load_assignment" in item else item for item in own]
    static["clusters"] = [*own, *others]
    if come_after_runtime(own):
        _wait_briefly_for_runtime(bootstrap["layered_runtime"]["layers"])
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

    def ignore_aliases(self, _data: object) -> bool:
        """Write what occurs twice out twice: a file for people has no anchors."""
        return True


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


def _wait_briefly_for_runtime(layers: list[dict[str, Any]]) -> None:
    for layer in layers:
        if "rtds_layer" in layer:
            layer["rtds_layer"]["rtds_config"]["initial_fetch_timeout"] = "0.2s"


def _certificate(cert: str, key: str) -> dict[str, Any]:
    return {
        "name": CERTIFICATE,
        "tls_certificate": {
            "certificate_chain": {"filename": cert},
            "private_key": {"filename": key},
        },
    }
