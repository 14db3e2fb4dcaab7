"""What an Envoy is served while changed clusters, listeners or routes are held back from it.

It keeps the clusters, listeners and routes of before, all from one snapshot, so that no route names
a cluster that it lacks. Everything else is of now: endpoints of those clusters as they are now, and
explicitly none where the pool is gone, so that what vanished gets no traffic from anyone.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from control_plane.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    SECRET,
    Snapshot,
    VersionedResource,
    empty_assignment,
)
from control_plane.stream import AdsStream

GATED = (CLUSTER, LISTENER, ROUTE)

Content = tuple[str, str, str]  # type URL, name, version; "" for the version of what is removed


def changed_contents(before: Snapshot, after: Snapshot) -> tuple[Content, ...]:
    """Return what of the gated types is new, other, or gone between two snapshots."""
    found: list[Content] = []
    for type_url in GATED:
        old, new = before.of_type(type_url), after.of_type(type_url)
        if old is new:
            continue
        found += [
            (type_url, name, item.version) for name, item in new.items() if _differs(old, item)
        ]
        found += [(type_url, name, "") for name in old if name not in new]
    return tuple(found)


def is_changed(before: Snapshot, after: Snapshot) -> bool:
    """Whether anything of the gated types differs."""
    for type_url in GATED:
        old, new = before.of_type(type_url), after.of_type(type_url)
        if old is not new and (
            len(old) != len(new) or any(_differs(old, item) for item in new.values())
        ):
            return True
    return False


def _differs(old: Mapping[str, VersionedResource], item: VersionedResource) -> bool:
    known = old.get(item.name)
    return known is not item and (known is None or known.version != item.version)


def held_form(before: Snapshot, now: Snapshot) -> Snapshot:
    """Return the gated types as before, with all else as it is now and whatever they refer to."""
    resources: dict[str, Mapping[str, VersionedResource]] = dict(now.resources)
    for type_url in GATED:
        resources[type_url] = before.of_type(type_url)
    resources[ENDPOINT] = _endpoints(before, now)
    for type_url in (EXTENSION, SECRET):
        resources[type_url] = _merged(before.of_type(type_url), now.of_type(type_url))
    return Snapshot(MappingProxyType(resources), before.eds_names)


def _endpoints(before: Snapshot, now: Snapshot) -> Mapping[str, VersionedResource]:
    """Return the endpoints of the clusters of before, and those that belong to no cluster."""
    old, new = before.of_type(ENDPOINT), now.of_type(ENDPOINT)
    of_new_clusters = set(now.eds_names.values())
    served = {name: item for name, item in new.items() if name not in of_new_clusters}
    for name in before.eds_names.values():
        if name in old:  # a cluster with endpoints of its own has none here
            served[name] = new.get(name) or empty_assignment(name)
    return MappingProxyType(dict(sorted(served.items())))


def _merged(
    old: Mapping[str, VersionedResource], new: Mapping[str, VersionedResource]
) -> Mapping[str, VersionedResource]:
    """Return what is there now, and what clusters and listeners of before may still ask for."""
    return MappingProxyType(dict(sorted({**old, **new}.items())))


def proves(streams: Iterable[AdsStream], snapshot: Snapshot) -> bool:
    """Whether an Envoy, by one or more streams, took all that it wants of the gated types.

    A type may come on a stream of its own, and an old stream may linger: of each type that the
    Envoy asks for, one stream that holds it is enough.
    """
    asked: dict[str, bool] = {}
    for stream in streams:
        for type_url in GATED:
            subscription = stream.subscriptions.get(type_url)
            if subscription is not None and not asked.get(type_url):
                asked[type_url] = subscription.settled(snapshot.of_type(type_url))
    return bool(asked) and all(asked.values())
