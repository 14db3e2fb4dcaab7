"""Messages built before, by what they were built from: the same again are the same objects."""

from collections.abc import Callable
from typing import Any


class Memo:
    """Remembers one message for each place: the kind of resource and its name.

    Messages are shared between snapshots, so nobody may change them.
    """

    def __init__(self) -> None:
        self._built: dict[tuple[str, str], tuple[object, Any]] = {}

    def get(self, kind: str, name: str, inputs: object, build: Callable[[], Any]) -> Any:
        """Return the message of a place; built again only when its inputs differ from the last."""
        known = self._built.get((kind, name))
        if known is not None and known[0] == inputs:
            return known[1]
        message = build()
        self._built[kind, name] = inputs, message
        return message

    def keep(self, kind: str, names: set[str]) -> None:
        """Forget the places of a kind that are not named."""
        for place in [p for p in self._built if p[0] == kind and p[1] not in names]:
            del self._built[place]
