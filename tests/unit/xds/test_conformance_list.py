"""The conformance list and the tests agree: no typo, no line without a test or a reason."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.conformance import read_list

TESTS = Path(__file__).parents[2]
LINES = {line.id: line for lines in read_list().values() for line in lines}
NUMBERED = re.compile(r"test_(consul_)?((?:\d+[ab]?_)+)")


@dataclass(frozen=True)
class Carrier:
    """A test function and the lines that its markers name, those of its parameters too."""

    where: str
    name: str
    lines: frozenset[str]


def functions_of(path: Path) -> Iterator[Carrier]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    whole_file = lines_in(*(node for node in tree.body if is_pytestmark(node)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            lines = whole_file | lines_in(*node.decorator_list)
            yield Carrier(f"{path.relative_to(TESTS)}::{node.name}", node.name, lines)


def is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"


def lines_in(*nodes: ast.AST) -> frozenset[str]:
    calls = [
        call
        for node in nodes
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "conformance"
    ]
    return frozenset(ast.literal_eval(argument) for call in calls for argument in call.args)


ALL = [test for path in sorted(TESTS.rglob("test_*.py")) for test in functions_of(path)]
CARRIED = {line for test in ALL for line in test.lines}


def test_the_lists_are_whole():
    numbers = [str(number) for number in range(1, 81)]
    numbers[63:63] = ["63a", "63b"]
    xds, consul = read_list().values()
    assert [line.id for line in xds] == numbers
    assert [line.id for line in consul] == [f"consul-{number}" for number in range(1, 39)]


def test_every_marker_names_a_line():
    assert {
        test.where: test.lines - LINES.keys() for test in ALL if test.lines - LINES.keys()
    } == {}


def test_a_number_in_a_tests_name_is_a_line_that_it_carries():
    wrong = {}
    for test in ALL:
        if (match := NUMBERED.match(test.name)) is None:
            continue
        prefix = "consul-" if match[1] else ""
        named = {f"{prefix}{number}" for number in match[2].strip("_").split("_")}
        if missing := (named & LINES.keys()) - test.lines:
            wrong[test.where] = missing
    assert wrong == {}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_every_line_has_tests_or_a_reason_why_not(line):
    reasons = [key for key in ("open", "partly", "not_applicable") if getattr(line, key)]
    if line.id in CARRIED:
        assert reasons in ([], ["partly"]), "it is tested"
    else:
        assert reasons in (["open"], ["not_applicable"]), "no test carries it"
    assert line.says
