"""When a burst of changes becomes one publication: after a quiet time, and never later than a cap.

Pure: the caller brings the time. One change alone waits `quiet_s`; a stream of changes that never
pauses is published every `cap_s`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Debounce:
    """How long to wait. Seconds."""

    quiet_s: float = 0.1
    cap_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Pending:
    """Changes that are not published yet: when the first and the last of them came."""

    first_s: float
    last_s: float


def note_change(pending: Pending | None, now_s: float) -> Pending:
    """Return what is pending after one more change."""
    return Pending(now_s if pending is None else pending.first_s, now_s)


def due_at_s(pending: Pending, debounce: Debounce) -> float:
    """Return when the pending changes are to be published."""
    return min(pending.last_s + debounce.quiet_s, pending.first_s + debounce.cap_s)
