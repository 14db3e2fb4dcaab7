"""How an Envoy's bootstrap reaches control planes over TLS: its certificate, and whom it takes.

Envoy reads a certificate that stands in its bootstrap once. One that is a secret in a file of its
own is read again whenever something is moved into its directory, so two such files lie beside the
certificate; they name it and never change.
"""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control_plane.mtls.spiffe import role_prefix

Json = dict[str, Any]

_IDENTITY, _AUTHORITIES = "control-plane-identity", "control-plane-ca"
_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"
_RAW = "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"
_PLAIN = {"plain": True}  # marks an endpoint on a Unix socket, for `transport_socket_matches`


@dataclass(frozen=True, slots=True)
class BootstrapTls:
    """An Envoy's certificate, and the trust domain of its control planes."""

    directory: Path  # absolute, on the Envoy's host: tls.crt, tls.key, ca.crt
    trust_domain: str


def secret_files(directory: Path) -> dict[Path, str]:
    """Return the files that Envoy reads its secrets from, with their contents."""
    watched = {"watched_directory": {"path": str(directory)}}
    certificate = {
        "certificate_chain": _file(directory / "tls.crt"),
        "private_key": _file(directory / "tls.key"),
        **watched,
    }
    authorities = {"trusted_ca": _file(directory / "ca.crt"), **watched}
    return {
        _path(directory, _IDENTITY): _secret(_IDENTITY, {"tls_certificate": certificate}),
        _path(directory, _AUTHORITIES): _secret(_AUTHORITIES, {"validation_context": authorities}),
    }


def over_tls(cluster: Json, tls: BootstrapTls) -> Json:
    """Return a cluster of control planes that speaks TLS to all but its Unix sockets."""
    changed = copy.deepcopy(cluster)
    plain = [
        endpoint
        for group in changed["load_assignment"]["endpoints"]
        for endpoint in group["lb_endpoints"]
        if "pipe" in endpoint["endpoint"]["address"]
    ]
    for endpoint in plain:
        endpoint["metadata"] = {"filter_metadata": {"envoy.transport_socket_match": _PLAIN}}
    changed["transport_socket_matches"] = [
        {"name": "plain", "match": _PLAIN, "transport_socket": _socket("raw_buffer", _RAW)},
        {"name": "tls", "match": {}, "transport_socket": _tls_socket(tls)},
    ]
    return changed


def _tls_socket(tls: BootstrapTls) -> Json:
    server = role_prefix(tls.trust_domain, "control-plane")
    return _socket(
        "tls",
        f"{_TLS}.UpstreamTlsContext",
        common_tls_context={
            "alpn_protocols": ["h2"],
            "tls_params": {
                "tls_minimum_protocol_version": "TLSv1_2",
                "tls_maximum_protocol_version": "TLSv1_3",
            },
            "tls_certificate_sds_secret_configs": [_config(tls, _IDENTITY)],
            "combined_validation_context": {
                "default_validation_context": {
                    "match_typed_subject_alt_names": [
                        {"san_type": "URI", "matcher": {"prefix": server}}
                    ]
                },
                "validation_context_sds_secret_config": _config(tls, _AUTHORITIES),
            },
        },
    )


def _socket(name: str, type_url: str, **fields: Any) -> Json:
    return {
        "name": f"envoy.transport_sockets.{name}",
        "typed_config": {"@type": type_url, **fields},
    }


def _config(tls: BootstrapTls, name: str) -> Json:
    source = {"path": str(_path(tls.directory, name))}
    return {
        "name": name,
        "sds_config": {"path_config_source": source, "resource_api_version": "V3"},
    }


def _path(directory: Path, name: str) -> Path:
    return directory / f"{name}.json"


def _file(path: Path) -> Json:
    return {"filename": str(path)}


def _secret(name: str, body: Json) -> str:
    secret = {"@type": f"{_TLS}.Secret", "name": name, **body}
    return json.dumps({"resources": [secret]}, indent=2) + "\n"
