"""What is kept of measurements: read back as it was, refused when it is something else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.errors import InputError
from control_plane.metadata import MAX_NAME_BYTES
from control_plane.posterior import Posterior
from control_plane.posterior_store import merge, parse_posteriors, render_posteriors
from tests.support.builders import make_fleet
from tests.support.consul_json import consul_entry

logs = st.floats(-20, 20)
corrections = st.floats(math.log(0.01), math.log(100))
posteriors = st.dictionaries(
    st.text(max_size=20),
    st.builds(
        Posterior,
        fingerprint=st.text(max_size=20),
        log_ratio=logs,
        samples=st.integers(0, 12),
        correction=corrections,
    ),
)


@given(posteriors)
def test_written_and_read_again(states):
    read = parse_posteriors(render_posteriors(states), source="key")
    assert read.keys() == states.keys()
    for engine, state in states.items():
        found = read[engine]
        assert (found.fingerprint, found.samples) == (state.fingerprint, state.samples)
        assert (found.log_ratio, found.correction) == (state.log_ratio, state.correction)


def test_equal_beliefs_give_equal_bytes():
    one, two = Posterior(fingerprint="a"), Posterior(fingerprint="b", reason="told otherwise")
    quiet = Posterior(fingerprint="b")
    assert render_posteriors({"x": one, "y": two}) == render_posteriors({"y": quiet, "x": one})


@pytest.mark.conformance("consul-37")
def test_consul_37_a_nodes_beliefs_are_far_below_what_consul_takes():
    longest = "x" * (MAX_NAME_BYTES - len("n1.000"))
    (node,) = make_fleet(
        *(
            consul_entry(f"n1.{longest}{index:03}", socket=f"/run/{index}.sock")
            for index in range(256)
        )
    ).nodes
    kept = {
        engine.id: Posterior(
            fingerprint=engine.declaration, log_ratio=-1 / 3, samples=12, correction=-1 / 3
        )
        for engine in node.engines
    }
    assert len(kept) == 256
    assert len(render_posteriors(kept)) < 512 * 1024 / 2


GOOD = '"fingerprint":"f","log_ratio":0.1,"samples":3,"correction":0.0'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"e": {}}',
        '{"e": {' + GOOD + ',"more":1}}',
        '{"e": {' + GOOD.replace("0.1", "1e300") + "}}",
        '{"e": {' + GOOD.replace("3", "-1") + "}}",
        '{"e": {' + GOOD.replace("0.0", "-49.0") + "}}",  # rounded it is no capacity at all
        '{"e": {' + GOOD.replace("0.1", '"x"') + "}}",
        '{"e": {' + GOOD,
        "\x00",
    ],
)
def test_anything_else_is_refused_with_its_key(text):
    with pytest.raises(InputError) as error:
        parse_posteriors(text.encode(), source="Consul key wattmesh/capacity/n1")
    (problem,) = error.value.problems
    assert problem.source == "Consul key wattmesh/capacity/n1"
    assert "anew" in problem.meanwhile


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        parse_posteriors(data, source="key")
    except InputError:
        return


@pytest.mark.parametrize(
    ("theirs", "taken"),
    [
        pytest.param(Posterior(fingerprint="f", samples=5), True, id="they know more"),
        pytest.param(Posterior(fingerprint="f", samples=2), False, id="they know less"),
        pytest.param(Posterior(fingerprint="g", samples=9), False, id="of another card"),
    ],
)
def test_the_belief_with_more_samples_wins(theirs, taken):
    own = {"e": Posterior(fingerprint="f", samples=3)}
    assert merge(own, {"e": theirs, "other": theirs}) == ({"e": theirs} if taken else {})
