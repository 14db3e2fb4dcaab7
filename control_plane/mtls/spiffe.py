"""The identity in a certificate: spiffe://<trust domain>/wattmesh/<role>/<id>.

The URI SAN is the one thing that names a peer; host names and common names mean nothing here, so
that a host's address may change and a certificate stays what it is.
https://github.com/spiffe/spiffe/blob/main/standards/SPIFFE-ID.md
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from control_plane.errors import WattmeshError, shown

Role = Literal["control-plane", "edge", "node", "monitor", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)

_WORKLOADS = "wattmesh"
_TRUST_DOMAIN = re.compile(r"[a-z0-9._-]{1,255}")
_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,255}")
_MAX_CHARS = 2048


class IdentityError(WattmeshError):
    """A text that is no identity of this mesh."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who holds a certificate."""

    trust_domain: str
    role: Role
    id: str  # of an Envoy: its node.id

    def __str__(self) -> str:
        return f"{role_prefix(self.trust_domain, self.role)}{self.id}"


def role_prefix(trust_domain: str, role: Role) -> str:
    """Return how the URIs of everyone of a role begin."""
    return f"spiffe://{trust_domain}/{_WORKLOADS}/{role}/"


def make_identity(trust_domain: str, role: str, workload_id: str) -> Identity:
    """Return the identity. Raise IdentityError with every part that SPIFFE does not allow."""
    faults = []
    if not _TRUST_DOMAIN.fullmatch(trust_domain):
        faults.append(f"trust domain {shown(trust_domain)}: expected a-z, 0-9, dot, dash, _")
    if role not in ROLES:
        faults.append(f"role {shown(role)}: expected one of {', '.join(ROLES)}")
    if not _ID.fullmatch(workload_id):
        faults.append(f"id {shown(workload_id)}: expected letters, digits, dot, dash, _")
    if faults:
        raise IdentityError("; ".join(faults))
    return Identity(trust_domain, next(known for known in ROLES if known == role), workload_id)


def parse_identity(uri: str) -> Identity:
    """Return the identity of a URI SAN. Raise IdentityError, saying what was expected."""
    scheme, separator, rest = uri[:_MAX_CHARS].partition("://")
    parts = rest.split("/")
    if scheme != "spiffe" or not separator or len(parts) != 4 or parts[1] != _WORKLOADS:
        raise IdentityError(
            f"URI {shown(uri)}: expected spiffe://<trust domain>/{_WORKLOADS}/<role>/<id>"
        )
    return make_identity(parts[0], parts[2], parts[3])


def check_asks_for_itself(peer: Identity, node_id: str, role: str) -> None:
    """Raise IdentityError unless the Envoy that asks is the one that the certificate names."""
    if (peer.id, peer.role) != (node_id, role):
        raise IdentityError(
            f"the certificate is of {peer.role} {shown(peer.id)}, "
            f"but {shown(role)} {shown(node_id)} is asked for; a node gets its own resources alone"
        )
