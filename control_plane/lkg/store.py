"""The recorded configuration as streams are served it. Used from one event loop."""

import asyncio
from collections.abc import Iterable

from control_plane.resources import View
from control_plane.snapshot import Snapshot, VersionedResource
from control_plane.store import Store
from control_plane.stream import Nacked


class CacheStore(Store):
    """A `Store` with one world for the one Envoy beside it."""

    def __init__(self) -> None:
        self.envoys = lambda _role: ()
        self.on_cleared = lambda _refusals: None
        self.world: Snapshot | None = None
        self._changed = asyncio.Event()

    @property
    def unready(self) -> str | None:
        """Why nothing is served yet; None once something is recorded."""
        return "no configuration was recorded here yet" if self.world is None else None

    def put(self, world: Snapshot) -> None:
        """Serve a world from now on."""
        self.world = world
        self._changed.set()
        self._changed = asyncio.Event()

    def snapshot(self, _view: View, _node: str = "") -> Snapshot | None:
        """Return the world, whoever asks."""
        return self.world

    def bell(self) -> asyncio.Event:
        """Return the event that the next `put` sets."""
        return self._changed

    def note_acked(self, view: View, type_url: str, taken: Iterable[VersionedResource]) -> None:
        """Do nothing: the Envoy has what it had before."""

    def note_refused(self, view: View, event: Nacked, *, node: str, at_s: float) -> None:
        """Do nothing: the stream logs it, and there is no other form to serve."""

    def note_proven(self, view: View, node: str) -> None:
        """Do nothing: there is one Envoy, and no canary."""

    def note_unfit(self, view: View, node: str) -> None:
        """Do nothing: there is one Envoy, and no canary."""

    def forget(self, view: View) -> None:
        """Do nothing: views make no difference here."""
