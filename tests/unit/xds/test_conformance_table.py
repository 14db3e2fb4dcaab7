"""The conformance table says what came of each line, and never more than that."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.conformance import Line, judge, rows

ROOT = Path(__file__).parents[3]
PARTLY = "one half is missing"


@pytest.mark.parametrize(
    ("reasons", "outcomes", "told"),
    [
        pytest.param({}, "passed passed", "passed", id="all passed"),
        pytest.param({}, "passed failed skipped", "FAILED: 1 of 3", id="one failure is enough"),
        pytest.param({}, "skipped skipped", "skipped", id="nothing ran"),
        pytest.param({}, "passed skipped", "passed: 1 of 2 skipped", id="some were skipped"),
        pytest.param({}, "passed, not run", "NOT RUN: 1 of 2", id="stopped before its end"),
        pytest.param({}, "", "NOT TESTED", id="nobody carries it in this run"),
        pytest.param({"open": "to do"}, "", "NOT TESTED: to do", id="nobody does, and why"),
        pytest.param({"not_applicable": "none"}, "", "not applicable: none", id="not ours"),
        pytest.param({"partly": PARTLY}, "passed", f"passed in part: {PARTLY}", id="a part"),
        pytest.param({"partly": PARTLY}, "failed", "FAILED: 1 of 1", id="a part that fails"),
        pytest.param(
            {"partly": PARTLY},
            "passed skipped",
            f"passed in part: {PARTLY}; 1 of 2 skipped",
            id="a part, and some were skipped",
        ),
    ],
)
def test_what_follows_from_the_outcomes(reasons, outcomes, told):
    split = outcomes.split(", ") if "," in outcomes else outcomes.split()
    verdict = judge(Line(id="7", says="silence", **reasons), split)
    assert verdict.tests == len(split)
    header, row, total = rows([verdict])
    assert row.split(maxsplit=3) == ["7", "silence", str(len(split)), told]
    assert header.split() == ["line", "what", "it", "asks", "tests", "result"]
    assert total == f"1 lines: 1 {verdict.result}"


SOME_TESTS = """
import pytest

line = pytest.mark.conformance


@line("1")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_parameters_count_each(number):
    pass


@line("2")
@pytest.mark.parametrize("number", [1, 2])
def test_one_of_two_fails(number):
    assert number == 1


@pytest.fixture
def broken_before():
    raise RuntimeError


@pytest.fixture
def broken_after():
    yield
    raise RuntimeError


@line("3")
def test_set_up_fails(broken_before):
    pass


@line("4")
def test_what_comes_after_fails(broken_after):
    pass


@line("5")
@pytest.mark.skip
def test_skipped():
    pass


@line("6")
@pytest.mark.xfail
def test_that_is_known_to_fail():
    assert False


@line("7")
@line("consul-1")
@pytest.mark.parametrize("number", [1, pytest.param(2, marks=[line("8"), pytest.mark.skip])])
def test_of_two_lines(number):
    pass
"""


def test_a_run_is_told_phase_by_phase(tmp_path):
    (tmp_path / "test_some.py").write_text(SOME_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = conformance(id): a line")
    argv = [sys.executable, "-m", "pytest", "-p", "tests.support.conformance", "-q"]
    argv += ["--conformance-table", "--conformance-json=table.json", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    told = json.loads((tmp_path / "table.json").read_text())
    seen = {verdict["id"]: verdict for verdicts in told.values() for verdict in verdicts}
    assert {line: seen[line]["result"] for line in [*map(str, range(1, 10)), "consul-1"]} == {
        "1": "passed",
        "2": "FAILED",
        "3": "FAILED",
        "4": "FAILED",
        "5": "skipped",
        "6": "FAILED",
        "7": "passed",
        "8": "skipped",
        "9": "NOT TESTED",
        "consul-1": "passed",
    }
    assert seen["1"]["outcomes"] == {"passed": 3}
    assert seen["consul-1"]["reason"] == "1 of 2 skipped"
    (row,) = [row for row in done.stdout.splitlines() if row.startswith("2 ")]
    assert row.endswith("2  FAILED: 1 of 2")
