"""One change on its way through a role's Envoys: who is served it, who is awaited, who waits."""

import hashlib
from dataclasses import dataclass, field

from control_plane.canary_forms import GATED, Content
from control_plane.quarantine import Refusal
from control_plane.resources.view import View
from control_plane.stream import AdsStream

MAX_CANARIES = 3
ACKNOWLEDGED = "acknowledged"
TIMED_OUT = "no answer in time"
NOBODY_LEFT = "no canary left"


@dataclass(frozen=True, slots=True)
class Envoy:
    """A connected Envoy that took something of the gated types and refuses none of it now."""

    node: str
    view: View
    settled: bool  # it has answered everything that it was sent of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A change that waits for its canaries, as it is shown."""

    role: str
    since: float  # seconds, on the clock that the caller reads
    canaries: tuple[str, ...]  # nodes whose ACK is awaited
    waiting: tuple[str, ...]  # nodes that keep the form of before
    contents: tuple[Content, ...]  # what waits, over all of them


@dataclass(frozen=True, slots=True)
class Held:
    """The first Envoy of a wave was held back."""

    hold: Hold


@dataclass(frozen=True, slots=True)
class Released:
    """A wave during which Envoys were held is over, and why."""

    hold: Hold
    reason: str  # ACKNOWLEDGED, TIMED_OUT or NOBODY_LEFT


News = Held | Released


@dataclass(slots=True)
class Wave:
    """The state of one change in one role."""

    since: float
    begun_in: int  # the generation; until somebody waits, the next one begins a wave of its own
    quota: int  # canaries wanted
    served: set[str] = field(default_factory=set)  # nodes that get the change, gone or not
    canaries: set[str] = field(default_factory=set)  # of them, those that may prove it
    pending: set[str] = field(default_factory=set)  # of them, those whose ACK is awaited
    waiting: dict[str, View] = field(default_factory=dict)  # nodes that are held
    refusals: dict[tuple[str, str], Refusal] = field(default_factory=dict)  # by type URL and name
    told: bool = False  # that an Envoy waits
    over_in: int | None = None  # the generation in which it ended; None while it is under way

    def choose(self, envoy: Envoy) -> None:
        """Make an Envoy a canary."""
        self.served.add(envoy.node)
        self.canaries.add(envoy.node)
        self.pending.add(envoy.node)
        self.waiting.pop(envoy.node, None)

    def inherit(self, last: "Wave") -> None:
        """Go on with the canaries of a wave that nobody waits for: they keep what they have."""
        self.served |= last.served
        self.canaries |= last.canaries
        self.pending |= last.pending
        self.refusals |= last.refusals
        self.told = last.told

    def drop(self, node: str) -> bool:
        """End a canary's part; return whether its ACK was awaited. It keeps what it was served."""
        self.canaries.discard(node)
        awaited = node in self.pending
        self.pending.discard(node)
        return awaited


def candidate(stream: AdsStream, view: View) -> Envoy | None:
    """Return a stream's Envoy if it may try a change: it took something, and refuses nothing."""
    asked = [sub for url, sub in stream.subscriptions.items() if url in GATED]
    if not any(sub.acks or sub.held for sub in asked) or any(sub.refused for sub in asked):
        return None
    return Envoy(stream.node.id, view, all(sub.outstanding is None for sub in asked))


def canaries_of(envoys: int) -> int:
    """Return how many of a number of Envoys try a change: one of ten, at least 1, at most 3."""
    return min(MAX_CANARIES, max(1, envoys // 10))


def rank(envoy: Envoy) -> tuple[bool, bytes]:
    """Order Envoys: those that answered everything first, and else always the same."""
    digest = hashlib.sha256(envoy.node.encode(errors="surrogatepass")).digest()
    return not envoy.settled, digest
