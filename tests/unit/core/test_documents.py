"""YAML of anybody: every fault is told by its place, and no document takes more than its share."""

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from control_plane.documents import MAX_REPEATED_VALUES, load_document
from control_plane.errors import InputError, shown
from control_plane.policy import parse_policy
from engines.node_config import parse_node


class Anything(BaseModel):
    """A document of one field that may be anything."""

    value: object = None


def fault(text):
    with pytest.raises(InputError) as caught:
        load_document(text.encode(), Anything, source="f", meanwhile="nothing is done")
    (problem,) = caught.value.problems
    return str(problem)


@pytest.mark.parametrize(
    "scalar",
    [
        "!!bool maybe",
        "!!bool",
        "!!timestamp 5s",
        "!!timestamp 2001-99-99",
        '!!int ""',
        "!!int 0x",
        '!!float ""',
        "!!binary é",
        "!!map text",
        "!!omap text",
        "!!python/object/apply:os.system [x]",
        "{[1]: 2}",
        "1" * 200,
        "1:1" * 100,
    ],
)
def test_a_value_that_its_tag_cannot_hold_is_told_by_its_place(scalar):
    assert "line 2, column" in fault(f"# a comment\nvalue: {scalar}")


def bomb(levels):
    """A document of which each level holds the one before nine times."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize("levels", [6, 10, 40, 200])
def test_aliases_count_as_what_they_stand_for(levels):
    assert f"aliases for more than {MAX_REPEATED_VALUES} values" in fault(bomb(levels))


def test_a_few_aliases_are_fine():
    text = b"value: [&a {x: 1}, *a, &b [*a, *a], *b]"
    document = load_document(text, Anything, source="f", meanwhile="")
    assert document.value == [{"x": 1}, {"x": 1}, [{"x": 1}] * 2, [{"x": 1}] * 2]


@pytest.mark.parametrize("text", ["value: &a [*a]", "value: &a {x: *a}", "value: &a {<<: *a}"])
def test_an_alias_within_what_it_stands_for_is_refused(text):
    assert "an alias within what it stands for" in fault(text)


@pytest.mark.parametrize(
    "value",
    ["x" * 10**7, b"x" * 10**7, 10**100_000, [["x" * 10**6] * 10**4] * 10**4, {"k": "x" * 10**7}],
    ids=["text", "bytes", "number", "lists", "mapping"],
)
def test_what_is_shown_of_a_value_is_bounded(value):
    assert len(shown(value)) <= 120


def test_what_is_short_is_shown_as_it_is():
    for value in ("a", b"a", 5, 1.5, None, True, [1, "a"], {"b": 1, "a": [2]}):
        assert shown(value) == repr(value)


_MORE = ("omap", "pairs", "merge", "value", "yaml", "no-such")
TAGS = st.sampled_from(
    (*("bool", "int", "float", "null", "timestamp", "binary", "str", "map", "seq", "set"), *_MORE)
)
SCALARS = st.text(max_size=12) | st.sampled_from(["", "5", "0x", "1:1", "2001-01-01", "~", "[1]"])
TAGGED = st.builds("!!{} {}".format, TAGS, SCALARS | st.sampled_from(["{a: 1}", "[1, [2]]"]))
KEYS = st.sampled_from(["node", "address", "engines", "defaults", "models", "retry_after", "<<"])
DOCUMENTS = st.lists(st.builds("{}: {}".format, KEYS, TAGGED), max_size=4).map("\n".join)


TEXTS = (st.text(max_size=200) | TAGGED | DOCUMENTS).map(
    lambda text: text.encode(errors="surrogatepass")
)


@given(st.binary(max_size=200) | TEXTS)
@example(b"models: {? 0x" + b"f" * 5000 + b" : {}}")
@example(b"retry_after: " + b"[" * 5000)
@example(b'models: {"\\ud800": 5}')
def test_any_bytes_are_a_document_or_an_input_error(data):
    for parse in (parse_policy, parse_node):
        with contextlib.suppress(InputError):
            parse(data, source="fuzz")
