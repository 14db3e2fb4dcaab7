"""Endpoints that a stream resumed while its Envoy asks for no clusters: a sign that it is stuck.

An Envoy that reconnects asks for clusters first. One whose clusters are warming may hold that
request back for ever, and is then served no change of them [Envoy #34334, #36951]. Clients that
get their clusters elsewhere look the same, so this is an alarm and ends nothing.
"""

from control_plane.snapshot import CLUSTER, ENDPOINT

ORPHAN_S = 15.0  # longer than clusters wait for their endpoints


class OrphanWatch:
    """Watches one stream; time is an argument."""

    def __init__(self) -> None:
        self._has_clusters = False
        self._watches = False
        self._since: float | None = None
        self.due = False  # the alarm, until it is taken

    def note_first(self, type_url: str, *, resumed: bool) -> None:
        """Take a type's first request; `resumed` if the client told what it holds of it."""
        if type_url == CLUSTER:
            self._has_clusters, self._watches, self._since = True, False, None
        elif type_url == ENDPOINT:
            self._watches = resumed and not self._has_clusters

    def pass_time(self, now: float) -> None:
        """Raise the alarm once its time has come."""
        if not self._watches:
            return
        if self._since is None:
            self._since = now
        elif now >= self._since + ORPHAN_S:
            self._watches, self._since, self.due = False, None, True

    def next_deadline(self) -> float | None:
        """Return when the alarm is due; None when none is to be expected."""
        return None if self._since is None else self._since + ORPHAN_S
