"""What a stream asked for, by the protocol's rules: nothing else may ever be answered."""

from dataclasses import dataclass, field
from typing import Any

from tests.support.xds_wire import CLUSTER, LISTENER, Variant, names, removed

_LEGACY = (CLUSTER, LISTENER)  # types of which no name at first means everything


@dataclass
class _Names:
    wildcard: bool = False
    legacy: bool = False  # everything because nothing was named yet
    names: set[str] = field(default_factory=set)
    nonce: str = ""  # of the last response


class Interest:
    """Follows the requests and responses of one stream, each after the one before was settled."""

    def __init__(self, variant: Variant) -> None:
        self._tell = self._tell_state if variant == "sotw" else self._tell_changes
        self._types: dict[str, _Names] = {}

    def last_nonce(self, type_url: str) -> str:
        """Return the nonce of a type's last response, empty when there was none."""
        known = self._types.get(type_url)
        return known.nonce if known else ""

    def asked(self, type_url: str, request: dict[str, Any]) -> None:
        """Take a request that the server understands."""
        first = type_url not in self._types
        self._tell(type_url, self._types.setdefault(type_url, _Names()), request, first)

    def check(self, response: Any) -> None:
        """Fail when a response holds what was not asked for."""
        known = self._types.get(response.type_url)
        assert known is not None, f"{response.type_url} was not asked for"
        known.nonce = response.nonce
        if not known.wildcard:
            told = {*names(response), *removed(response)}
            assert told <= known.names, f"{told - known.names} were not asked for"

    def _tell_state(
        self, type_url: str, known: _Names, request: dict[str, Any], first: bool
    ) -> None:
        wanted = set(request["resource_names"])
        if known.nonce and request["response_nonce"] != known.nonce:
            return  # it is stale
        known.legacy = not wanted and type_url in _LEGACY and (first or known.legacy)
        known.wildcard = "*" in wanted or known.legacy
        known.names = wanted - {"*"}

    def _tell_changes(
        self, type_url: str, known: _Names, request: dict[str, Any], first: bool
    ) -> None:
        added = set(request["resource_names_subscribe"])
        dropped = set(request["resource_names_unsubscribe"])
        if first and not added and type_url in _LEGACY:
            known.wildcard = True
        known.wildcard = (known.wildcard or "*" in added) and "*" not in dropped
        known.names = (known.names | added) - dropped - {"*"}
