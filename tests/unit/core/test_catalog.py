"""Consul's answers, good and bad: one bad engine drops that engine only."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.catalog import parse_catalog
from control_plane.errors import InputError
from tests.support.consul_json import consul_answer, consul_entry


def ids(*entries):
    return [entry.id for entry in parse_catalog(consul_answer(*entries), source="consul").entries]


def test_an_entry_as_consul_gives_it():
    entry = consul_entry("node-a.e0", port=10443)
    entry["Node"] |= {"ID": "x", "TaggedAddresses": None, "Meta": None}
    entry["Service"] |= {"Tags": None, "Weights": {"Passing": 1}, "EnableTagOverride": False}
    (parsed,) = parse_catalog(consul_answer(entry), source="consul").entries
    assert (parsed.id, parsed.node, parsed.engine) == ("node-a.e0", "node-a", "e0")
    assert (parsed.address, parsed.port, parsed.passing) == ("127.0.0.1", 10443, True)


@pytest.mark.conformance("consul-18")
def test_consul_18_an_empty_service_address_is_the_nodes():
    entry = consul_entry()
    entry["Service"]["Address"] = ""
    entry["Node"]["Address"] = "10.0.0.7"
    assert parse_catalog(consul_answer(entry), source="consul").entries[0].address == "10.0.0.7"


@pytest.mark.parametrize(
    ("statuses", "passing"),
    [
        (["passing"], True),
        (["passing", "warning"], True),
        (["passing", "critical"], False),
        ([], True),
    ],
)
def test_one_critical_check_is_enough(statuses, passing):
    entry = consul_entry()
    entry["Checks"] = [{"CheckID": str(i), "Status": s} for i, s in enumerate(statuses)]
    assert parse_catalog(consul_answer(entry), source="consul").entries[0].passing is passing


def test_maintenance_is_not_passing():
    entry = consul_entry()
    entry["Checks"].append({"CheckID": "_node_maintenance", "Status": "critical"})
    assert not parse_catalog(consul_answer(entry), source="consul").entries[0].passing


def test_null_checks_are_tolerated():
    entry = consul_entry()
    entry["Checks"] = None
    assert parse_catalog(consul_answer(entry), source="consul").entries[0].passing


@pytest.mark.parametrize(
    ("broken", "paths"),
    [
        pytest.param(7, ["[1]"], id="not an object"),
        pytest.param({}, ["[1]"], id="no service"),
        pytest.param({"Service": None}, ["[1]"], id="null service"),
        pytest.param(
            {"Service": {"Port": 0}},
            ["[1].Service.Address", "[1].Service.ID", "[1].Service.Meta", "[1].Service.Port"],
            id="everything missing, everything told",
        ),
        pytest.param(
            {"Service": {"ID": "n.e", "Address": "10.0.0.1", "Port": "80", "Meta": {"model": 1}}},
            ["[1].Service.Meta", "[1].Service.Port"],
            id="wrong types",
        ),
        pytest.param(
            {"Service": {"ID": "n.e", "Address": "10.0.0.1", "Port": 70000, "Meta": {}}},
            ["[1](n.e).Service.Meta.model", "[1](n.e).Service.Meta.socket", "[1].Service.Port"],
            id="metadata too",
        ),
        *[
            pytest.param(
                consul_entry("n.e") | {"Service": consul_entry("n.e")["Service"] | {"Address": a}},
                ["[1].Service.Address"],
                id=f"address {a!r}, for which Envoy would refuse the endpoints of the whole pool",
            )
            for a in ("localhost", "gpu-1.example", "a\nb", "fe80::1%eth0", "10.0.0.1:80")
        ],
    ],
)
def test_a_bad_entry_drops_that_engine_only_and_tells_all(broken, paths):
    good = consul_entry("a.e1")
    catalog = parse_catalog(consul_answer(good, broken), source="catalog.json")
    assert [entry.id for entry in catalog.entries] == ["a.e1"]
    assert sorted(problem.path for problem in catalog.problems) == paths
    for problem in catalog.problems:
        assert problem.source == "catalog.json"
        assert problem.expected
        assert "no traffic" in problem.meanwhile


@pytest.mark.case("A1")
def test_a1_an_engine_with_an_impossible_socket_never_spoils_the_others():
    long = consul_entry("a.e2", socket="/" + "x" * 107)
    assert ids(consul_entry("a.e1"), long) == ["a.e1"]


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b"{}", b'"text"', b"null", b"[" * 100_000]
)
def test_a_document_that_is_no_list_is_refused(data):
    with pytest.raises(InputError) as error:
        parse_catalog(data, source="catalog.json")
    (problem,) = error.value.problems
    assert problem.source == "catalog.json"
    assert "last good catalog" in problem.meanwhile


def test_of_two_entries_with_one_id_the_live_one_stays():
    dead, live = consul_entry("a.e1", status="critical"), consul_entry("a.e1")
    for entries in ((dead, live), (live, dead)):
        catalog = parse_catalog(consul_answer(*entries), source="consul")
        assert [entry.passing for entry in catalog.entries] == [True]
        assert len(catalog.problems) == 1


@given(st.permutations([consul_entry(f"n{i}.e") for i in range(5)]))
def test_order_does_not_matter(entries):
    assert ids(*entries) == [f"n{i}.e" for i in range(5)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["Node", "Service", "Checks", "ID", "Meta", "Port", "Address", "Status"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(st.lists(JSON, max_size=5))
def test_no_list_crashes_it(document):
    parse_catalog(json.dumps(document).encode(), source="consul")


@given(st.binary(max_size=200))
def test_bytes_are_read_or_refused(data):
    with contextlib.suppress(InputError):
        parse_catalog(data, source="consul")
