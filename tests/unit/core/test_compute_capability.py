"""Compute capabilities compare as numbers, and an unreadable one is unknown, not old."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.compute_capability import parse_compute_capability, show_compute_capability

pytestmark = pytest.mark.case("F4")


@pytest.mark.parametrize(
    ("value", "enough_for_8_0"),
    [
        ("7.5", False),
        ("8.0", True),
        ("8.9", True),
        ("9.0", True),
        ("10.0", True),
        ("12.0", True),
        ("12.1", True),
        ("9.0a", True),
        ("sm_100", True),
        ("sm_75", False),
        ((10, 0), True),
    ],
)
def test_f4_only_7_5_is_below_8_0(value, enough_for_8_0):
    found = parse_compute_capability(value)
    assert found is not None
    assert (found >= (8, 0)) is enough_for_8_0


@pytest.mark.parametrize(
    ("value", "pair"),
    [("sm_100", (10, 0)), ("sm_90a", (9, 0)), (" 8.9 ", (8, 9)), ("12.1", (12, 1))],
)
def test_f4_forms_of_the_same_thing(value, pair):
    assert parse_compute_capability(value) == pair


@pytest.mark.parametrize(
    "value", ["", "gfx942", "8", "eight", "8.x", "\u0668.\u0660", "-8.0", None]
)
def test_f4_unreadable_is_unknown(value):
    assert parse_compute_capability(value) is None


@given(st.integers(1, 200), st.integers(0, 9))
def test_shown_and_read_again(major, minor):
    assert parse_compute_capability(show_compute_capability((major, minor))) == (major, minor)


@given(st.text(max_size=30))
def test_any_text_is_read_or_unknown(text):
    found = parse_compute_capability(text)
    assert found is None or (0 <= found[0] < 1000 and 0 <= found[1] < 100)
