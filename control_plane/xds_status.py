"""What each connected Envoy holds, for `wattmesh status` and /v1/xds/status.

The states are the ones that Istio's operators know: SYNCED, NOT_SENT, STALE, ERROR.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from google.protobuf import json_format

from control_plane.canary import BOUND_S
from control_plane.canary_wave import Hold
from control_plane.quarantine import Refusal
from control_plane.snapshot import Snapshot
from control_plane.stream import AdsStream
from control_plane.subscription import Subscription

_MAX_REFUSED_SHOWN = 20
_MAX_HELD_SHOWN = 100  # nodes, and contents, of one change


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeStatus:
    """One resource type on one stream."""

    type: str  # e.g. "Cluster"
    state: str  # SYNCED | NOT_SENT | STALE | ERROR
    resources: int  # that the Envoy holds
    wildcard: bool  # it wants everything of this type
    subscribed: int  # names it asked for
    responses: int  # sent on this stream
    acks: int
    nacks: int
    sent_nonce: str
    acked_nonce: str
    refused: tuple[str, ...]  # names whose present content it refused; the first few
    last_error: str  # tail of the last NACK's text, empty once nothing refused is wanted any more


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStatus:
    """One connected Envoy."""

    node: str
    role: str
    envoy_version: str
    connected_since: float  # seconds since the epoch
    types: tuple[TypeStatus, ...]


def refusal_to_json(refusal: Refusal) -> dict[str, object]:
    """Return a quarantined content as JSON values."""
    return {**asdict(refusal), "type": refusal.type_url.rpartition(".")[2]}


def canary_to_json(holds: Iterable[Hold]) -> dict[str, object]:
    """Return the changes that wait for their canaries as JSON values; times as in `since`."""
    return {
        "bound_s": BOUND_S,
        "held": [
            {
                "role": hold.role,
                "since": hold.since,
                "canaries": list(hold.canaries),
                "waiting": list(hold.waiting[:_MAX_HELD_SHOWN]),
                "waiting_count": len(hold.waiting),
                "contents": [
                    {"type": type_url.rpartition(".")[2], "name": name, "version": version}
                    for type_url, name, version in hold.contents[:_MAX_HELD_SHOWN]
                ],
            }
            for hold in holds
        ],
    }


def snapshot_to_json(snapshot: Snapshot) -> dict[str, list[Any]]:
    """Return a snapshot's resources by type URL, as proto3 JSON in Envoy's own spelling."""
    return {
        type_url: [
            json_format.MessageToDict(item.body, preserving_proto_field_name=True)
            for item in resources.values()
        ]
        for type_url, resources in snapshot.resources.items()
    }


def stream_status(stream: AdsStream, role: str, connected_since: float) -> StreamStatus:
    """Return the state of one stream."""
    version = stream.node.user_agent_build_version.version
    return StreamStatus(
        node=stream.node.id,
        role=role,
        envoy_version=f"{version.major_number}.{version.minor_number}.{version.patch}",
        connected_since=connected_since,
        types=tuple(
            _type_status(type_url, subscription)
            for type_url, subscription in stream.subscriptions.items()
        ),
    )


def _type_status(type_url: str, subscription: Subscription) -> TypeStatus:
    return TypeStatus(
        type=type_url.rpartition(".")[2],
        state=_state(subscription),
        resources=len(subscription.held),
        wildcard=subscription.wildcard,
        subscribed=len(subscription.names),
        responses=subscription.responses,
        acks=subscription.acks,
        nacks=subscription.nacks,
        sent_nonce=subscription.sent_nonce,
        acked_nonce=subscription.acked_nonce,
        refused=tuple(sorted(subscription.refused)[:_MAX_REFUSED_SHOWN]),
        last_error=subscription.last_error,
    )


def _state(subscription: Subscription) -> str:
    if subscription.last_error:
        return "ERROR"
    if subscription.outstanding is not None:
        return "STALE"
    return "SYNCED" if subscription.greeted else "NOT_SENT"
