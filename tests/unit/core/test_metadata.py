"""An engine's metadata: what is read, what becomes unknown, what drops the engine."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.metadata import (
    MAX_NUM_SEQS,
    NUMBER_BOUNDS,
    STATES,
    EngineMetadata,
    parse_metadata,
    render_metadata,
    socket_path_fault,
)

VALID = {"model": "acme/fox", "socket": "/run/wattmesh/e0.sock"}


def parse(**meta):
    return parse_metadata(VALID | meta, source="consul", path="[0]")


def test_absent_means_unknown():
    metadata, problems = parse()
    assert problems == ()
    assert metadata == EngineMetadata(model="acme/fox", socket="/run/wattmesh/e0.sock")
    unknown = [f.name for f in dataclasses.fields(metadata) if getattr(metadata, f.name) is None]
    assert {"gpu_power", "gpu_model", "max_num_seqs", "keep_alive_s"} <= set(unknown)


@pytest.mark.parametrize(
    ("meta", "power"),
    [
        pytest.param({"gpu_power": "300"}, 300.0, id="snake case"),
        pytest.param({"gpuPower": "2.5"}, 2.5, id="camel case, as Spring users write it"),
        pytest.param({"gpu_power": "1", "gpuPower": "2"}, 1.0, id="snake case wins"),
    ],
)
def test_both_spellings_of_power(meta, power):
    assert parse(**meta)[0].gpu_power == power


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[
            ("gpu_power", v)
            for v in ("", "abc", "0", "-5", "nan", "inf", "350 W", "1e13", "1e-320")
        ],
        *[("max_num_seqs", v) for v in ("", "0", "-1", "2.5", "x", "٣", "99999999999")],
        *[("gpu_power_limit_w", v) for v in ("1e-310", "0.09", "1e7")],
        *[("gpu_power_default_w", v) for v in ("1e-310", "0.09", "1e7")],
        *[("keep_alive_s", v) for v in ("0.001", "86401", "1e12")],
        ("max_num_seqs", "2147483647"),
        ("gpu_model", "bad\x00name"),
        ("zone", "z" * 300),
    ],
)
def test_a_broken_optional_key_becomes_unknown_and_is_told(key, value):
    metadata, problems = parse(**{key: value})
    assert getattr(metadata, key) is None
    (problem,) = problems
    assert problem.path == f"[0].{key}"
    assert problem.value.startswith(repr(value)[:20])
    assert "unknown" in problem.meanwhile


@pytest.mark.parametrize(
    ("meta", "path", "value"),
    [
        pytest.param({"model": ""}, "model", "''", id="empty model"),
        pytest.param({"model": "a\nb"}, "model", r"'a\nb'", id="control character"),
        pytest.param({"version": " v1"}, "version", "' v1'", id="space at the end"),
        pytest.param({"socket": "e0.sock"}, "socket", "'e0.sock'", id="relative socket"),
        pytest.param({"socket": ""}, "socket", "''", id="empty socket"),
        pytest.param({"state": "happy"}, "state", "'happy'", id="unknown state"),
    ],
)
def test_a_broken_identity_drops_the_engine(meta, path, value):
    metadata, (problem,) = parse(**meta)
    assert metadata is None
    assert (problem.path, problem.value) == (f"[0].{path}", value)
    assert "no traffic" in problem.meanwhile


def test_all_problems_come_at_once():
    metadata, problems = parse_metadata(
        {"state": "x", "gpu_power": "-1", "gpu_count": "many"}, source="consul", path="[3]"
    )
    assert metadata is None
    keys = {problem.path.rpartition(".")[2] for problem in problems}
    assert keys == {"model", "socket", "state", "gpu_power", "gpu_count"}


@pytest.mark.case("A1")
@pytest.mark.parametrize(
    ("path", "size"),
    [
        pytest.param("/" + "a" * 106, None, id="A1 107 bytes"),
        pytest.param("/" + "a" * 16 + "é" * 45, None, id="A1 62 characters, 107 bytes"),
        pytest.param("/" + "a" * 107, 108, id="A1 108 bytes"),
        pytest.param("/" + "a" * 16 + "é" * 46, 109, id="A1 one accent more, 109 bytes"),
    ],
)
def test_a1_socket_path_is_bound_by_bytes(path, size):
    fault = socket_path_fault(path)
    if size is None:
        assert fault is None
        assert parse(socket=path)[0].socket == path
    else:
        assert "107 bytes" in fault
        assert str(size) in fault
        metadata, (problem,) = parse(socket=path)
        assert metadata is None
        assert problem.expected == fault


TEXT = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=30)
COUNT = st.integers(min_value=1, max_value=2**31 - 1)


@given(
    st.builds(
        EngineMetadata,
        model=TEXT,
        socket=TEXT.map(lambda name: f"/run/{name[:20]}"),
        version=st.just("") | TEXT,
        state=st.sampled_from(STATES),
        gpu_model=st.none() | TEXT,
        zone=st.none() | TEXT,
        gpu_count=st.none() | COUNT,
        max_num_seqs=st.none() | st.integers(min_value=1, max_value=MAX_NUM_SEQS),
        **{key: st.none() | st.floats(*bounds) for key, bounds in NUMBER_BOUNDS.items()},
    )
)
def test_what_the_agent_writes_is_what_we_read(metadata):
    rendered = render_metadata(metadata)
    assert all(isinstance(value, str) for value in rendered.values())
    assert parse_metadata(rendered, source="consul", path="[0]") == (metadata, ())


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=20))
def test_nothing_crashes_it(meta):
    metadata, problems = parse_metadata(meta, source="consul", path="[0]")
    assert metadata is not None or problems
