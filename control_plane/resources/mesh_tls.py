"""TLS between edges and nodes: contexts that name secrets, and the secrets.

Private keys never leave their host: the secret of an Envoy's own certificate holds the names of
files there, which Envoy watches. What all trust comes inline, so that a rotation of the CA is a
push of one secret: no cluster and no listener changes, and no stream is cut.
"""

from control_plane.errors import PayloadError
from control_plane.mtls.spiffe import Role, role_prefix
from control_plane.plan import MeshTls
from control_plane.resources.messages import ADS, TYPE, Json, secret
from control_plane.resources.view import View

IDENTITY = "mesh-identity"
AUTHORITIES = "mesh-ca"

_SOCKET = "envoy.transport_sockets.tls"
_CONTEXTS = f"{TYPE}envoy.extensions.transport_sockets.tls.v3"
# Both: an Envoy that is a client goes up to 1.2 unless told otherwise.
_TLS_1_3 = {
    "tls_minimum_protocol_version": "TLSv1_3",
    "tls_maximum_protocol_version": "TLSv1_3",
}
_CALLERS: tuple[Role, ...] = ("control-plane", "edge", "monitor", "operator")
_READERS: tuple[Role, ...] = ("control-plane", "monitor", "operator")


def mesh_secrets(tls: MeshTls | None, view: View) -> tuple[object, ...]:
    """Return the secrets of an Envoy that takes part in the mesh's TLS, sorted by name."""
    if tls is None or not takes_part(tls, view):
        return ()
    trusted = {"name": AUTHORITIES, "validation_context": {"trusted_ca": _inline(tls.trusted_ca)}}
    return secret(trusted), secret(own_certificate(view.tls_dir))


def own_certificate(tls_dir: str) -> Json:
    """Return the secret of an Envoy's own certificate, which lies in a directory of its host."""
    certificate = {
        "certificate_chain": {"filename": f"{tls_dir}/tls.crt"},
        "private_key": {"filename": f"{tls_dir}/tls.key"},
        "watched_directory": {"path": tls_dir},
    }
    return {"name": IDENTITY, "tls_certificate": certificate}


def takes_part(tls: MeshTls, view: View) -> bool:
    """Whether an Envoy needs a certificate; at the first step a node may have none yet.

    Raise PayloadError when it needs one and its bootstrap names none.
    """
    if view.role == "edge" and tls.mode == "accept":
        return False
    if view.tls_dir:
        return True
    if tls.mode == "accept":
        return False
    raise PayloadError(
        [
            f"{view.role} {view.node_id}".strip() + ": node.metadata.tls_dir is missing, expected "
            f"the directory of a certificate, since mesh TLS is {tls.mode!r}; "
            "write its bootstrap with --tls-dir"
        ]
    )


def to_nodes(tls: MeshTls) -> Json:
    """Return the transport socket of an edge's cluster: whoever answers must be a node."""
    return {
        "name": _SOCKET,
        "typed_config": {
            "@type": f"{_CONTEXTS}.UpstreamTlsContext",
            "common_tls_context": _common(tls, ("node",)),
        },
    }


def from_callers(tls: MeshTls) -> Json:
    """Return the transport socket of a node's listener: callers must hold a certificate."""
    return {
        "name": _SOCKET,
        "typed_config": {
            "@type": f"{_CONTEXTS}.DownstreamTlsContext",
            "common_tls_context": _common(tls, _CALLERS),
            "require_client_certificate": True,
        },
    }


def rights_by_role(tls: MeshTls) -> Json:
    """Return the HTTP filter of a node: edges send prompts, the others read metrics alone."""
    metrics = {"url_path": {"path": {"prefix": "/wattmesh/engines/"}}}
    return {
        "name": "envoy.filters.http.rbac",
        "typed_config": {
            "@type": f"{TYPE}envoy.extensions.filters.http.rbac.v3.RBAC",
            "rules": {
                "action": "ALLOW",
                "policies": {
                    "edges": {
                        "permissions": [{"any": True}],
                        "principals": [_principal(tls, "edge")],
                    },
                    "readers": {
                        "permissions": [metrics],
                        "principals": [_principal(tls, role) for role in _READERS],
                    },
                },
            },
        },
    }


def _principal(tls: MeshTls, role: Role) -> Json:
    return {"authenticated": {"principal_name": {"prefix": role_prefix(tls.trust_domain, role)}}}


def _common(tls: MeshTls, peers: tuple[Role, ...]) -> Json:
    """Return what both sides share: own certificate, whom to trust, and whom of those to take."""
    names = [
        {"san_type": "URI", "matcher": {"prefix": role_prefix(tls.trust_domain, role)}}
        for role in peers
    ]
    return {
        "alpn_protocols": ["h2"],
        "tls_params": _TLS_1_3,
        "tls_certificate_sds_secret_configs": [{"name": IDENTITY, "sds_config": ADS}],
        "combined_validation_context": {
            "default_validation_context": {"match_typed_subject_alt_names": names},
            "validation_context_sds_secret_config": {"name": AUTHORITIES, "sds_config": ADS},
        },
    }


def _inline(pem: str) -> Json:
    return {"inline_string": pem}
