"""What a held Envoy is served: the clusters, listeners and routes of before, all else of now."""

import pytest

from control_plane.canary_forms import changed_contents, held_form, is_changed, proves
from control_plane.snapshot import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, RUNTIME, SECRET
from tests.support.xds import Client, make_versions


def versions(snapshot, type_url):
    return {name: item.version for name, item in snapshot.of_type(type_url).items()}


BEFORE = {
    "cds": {"A": "v1", "B": "v1"},
    "eds": {"A": "v1", "B": "v1", "edges": "v1"},
    "ecds": {"X": "v1"},
    "sds": {"S": "v1", "gone": "v1"},
    "lds": {"L": "v1"},
    "rds": {"R": "v1"},
    "rtds": {"T": "v1"},
}
NOW = {
    "cds": {"A": "v2", "C": "v1"},
    "eds": {"A": "v2", "C": "v1", "edges": "v2"},
    "ecds": {"Y": "v1"},
    "sds": {"S": "v2"},
    "lds": {"L": "v2"},
    "rds": {"R": "v2"},
    "rtds": {"T": "v2"},
}


def test_clusters_listeners_and_routes_stay_and_all_else_moves():
    form = held_form(make_versions(**BEFORE), make_versions(**NOW))
    assert versions(form, CLUSTER) == BEFORE["cds"]
    assert versions(form, LISTENER) == BEFORE["lds"]
    assert versions(form, ROUTE) == BEFORE["rds"]
    assert versions(form, RUNTIME) == NOW["rtds"]
    assert dict(form.eds_names) == {"A": "A", "B": "B"}


def test_endpoints_are_those_of_the_clusters_that_are_served_as_they_are_now():
    form = held_form(make_versions(**BEFORE), make_versions(**NOW))
    served = versions(form, ENDPOINT)
    assert set(served) == {"A", "B", "edges"}
    assert (served["A"], served["edges"]) == ("v2", "v2")
    assert form.of_type(ENDPOINT)["B"].body.ByteSize()
    assert served["B"] != "v1"  # explicitly none: the pool is gone


def test_what_clusters_and_listeners_of_before_may_ask_for_stays():
    form = held_form(make_versions(**BEFORE), make_versions(**NOW))
    assert set(versions(form, EXTENSION)) == {"X", "Y"}
    assert versions(form, SECRET) == {"S": "v2", "gone": "v1"}


def test_what_changed_is_what_is_new_other_or_gone_of_the_three_types():
    before, now = make_versions(**BEFORE), make_versions(**NOW)
    assert set(changed_contents(before, now)) == {
        (CLUSTER, "A", "v2"),
        (CLUSTER, "B", ""),
        (CLUSTER, "C", "v1"),
        (LISTENER, "L", "v2"),
        (ROUTE, "R", "v2"),
    }
    assert is_changed(before, now)


@pytest.mark.parametrize("kind", ["eds", "ecds", "rtds", "sds"])
def test_endpoints_extensions_runtime_and_secrets_are_no_change(kind):
    before = make_versions(**BEFORE)
    now = make_versions(**(BEFORE | {kind: dict.fromkeys(BEFORE[kind], "v2")}))
    assert not is_changed(before, now)
    assert changed_contents(before, now) == ()


@pytest.mark.parametrize("kind", ["cds", "lds", "rds"])
@pytest.mark.parametrize("content", [{}, {"A": "v1", "more": "v1"}, {"other": "v1"}])
def test_any_difference_of_the_three_types_is_a_change(kind, content):
    assert is_changed(make_versions(**{kind: {"A": "v1"}}), make_versions(**{kind: content}))


def test_a_canary_has_proven_a_change_once_it_took_all_that_it_wants():
    client = Client(**BEFORE)
    client.send("cds")
    client.ack("cds")
    assert proves([client.stream], make_versions(**BEFORE))
    client.change(**NOW)
    assert not proves([client.stream], make_versions(**NOW))
    client.ack("cds")
    assert proves([client.stream], make_versions(**NOW))
    client.send("lds")
    assert not proves([client.stream], make_versions(**NOW))


def test_a_refusal_proves_nothing():
    client = Client(cds={"A": "v1"})
    client.send("cds")
    client.nack("cds")
    assert not proves([client.stream], make_versions(cds={"A": "v1"}))


def test_each_type_may_come_on_a_stream_of_its_own_and_old_streams_may_linger():
    clusters, listeners, old = Client(**BEFORE), Client(**BEFORE), Client(**BEFORE)
    clusters.send("cds")
    clusters.ack("cds")
    listeners.send("lds")
    old.send("cds")
    streams = [old.stream, clusters.stream, listeners.stream]
    assert not proves(streams, make_versions(**BEFORE))
    listeners.ack("lds")
    assert proves(streams, make_versions(**BEFORE))


def test_a_stream_that_asks_for_none_of_the_three_proves_nothing():
    client = Client(**BEFORE)
    client.send("eds", subscribe=("A",))
    client.ack("eds")
    assert not proves([client.stream], make_versions(**BEFORE))
