"""The conformance list as a table: what carries each line, and what came of it.

A pytest plugin. `--conformance-table` prints the table when the tests are done, and
`--conformance-json FILE` writes it; both tell of the tests that this run selected, and nothing
else. The list itself is `tests/xds/conformance.yaml`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import yaml

LIST = Path(__file__).parents[1] / "xds/conformance.yaml"
TITLES = {"xds": "xDS conformance", "consul": "Consul client and registrar"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the list. At most one of the three reasons is given."""

    id: str
    says: str
    open: str = ""  # why no test carries it yet
    partly: str = ""  # what its tests do not show
    not_applicable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a run says of a line. `outcomes` counts its tests, each parameter for itself."""

    id: str
    says: str
    tests: int
    outcomes: Mapping[str, int]
    result: str
    reason: str = ""


def read_list(path: Path = LIST) -> dict[str, tuple[Line, ...]]:
    """Return the lines by list. Raise TypeError when a line has a key that it may not have."""
    lists = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {
        name: tuple(Line(id=line, **fields) for line, fields in lines.items())
        for name, lines in lists.items()
    }


def judge(line: Line, outcomes: Iterable[str]) -> Verdict:
    """Return what follows for a line from the outcomes of all tests that carry it."""
    counts = Counter(outcomes)
    result, reason = _result(line, counts)
    return Verdict(
        id=line.id,
        says=line.says,
        tests=counts.total(),
        outcomes=dict(sorted(counts.items())),
        result=result,
        reason=reason,
    )


def _result(line: Line, counts: Counter[str]) -> tuple[str, str]:
    if not counts:
        reason = line.not_applicable or line.open
        return "not applicable" if line.not_applicable else "NOT TESTED", reason
    for outcome, result in (("failed", "FAILED"), ("not run", "NOT RUN")):
        if counts[outcome]:
            return result, _share(counts, outcome)
    if not counts["passed"]:
        return "skipped", ""
    skipped = f"{_share(counts, 'skipped')} skipped" if counts["skipped"] else ""
    reasons = "; ".join(filter(None, (line.partly, skipped)))
    return "passed in part" if line.partly else "passed", reasons


def _share(counts: Counter[str], outcome: str) -> str:
    return f"{counts[outcome]} of {counts.total()}"


def rows(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """Return the table's lines of text."""
    verdicts = tuple(verdicts)
    width = max(len(verdict.says) for verdict in verdicts)
    yield f"{'line':9}  {'what it asks':{width}}  tests  result"
    for verdict in verdicts:
        result = f"{verdict.result}: {verdict.reason}" if verdict.reason else verdict.result
        yield f"{verdict.id:9}  {verdict.says:{width}}  {verdict.tests:5}  {result}"
    counts = Counter(verdict.result for verdict in verdicts)
    yield f"{len(verdicts)} lines: " + ", ".join(f"{counts[key]} {key}" for key in sorted(counts))


class ConformanceTable:
    """Follows one run, and tells in its end."""

    def __init__(self, *, prints: bool, file: Path | None) -> None:
        self._prints = prints
        self._file = file
        self._lists = read_list()
        self._carriers: dict[str, list[str]] = {}  # node IDs by line
        self._outcomes: dict[str, str] = {}  # by node ID
        self._uncollected = 0  # files

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file whose tests nobody knows."""
        self._uncollected += report.failed

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note which of the selected tests carry which line."""
        for item in session.items:
            for line in sorted(carried(item)):
                self._carriers.setdefault(line, []).append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a phase of a test: a failure in any of them is one, an expected failure too."""
        known = self._outcomes.get(report.nodeid)
        if report.failed or (report.skipped and hasattr(report, "wasxfail")):
            self._outcomes[report.nodeid] = "failed"
        elif report.skipped:
            self._outcomes[report.nodeid] = known or "skipped"
        elif report.when == "call":
            self._outcomes[report.nodeid] = known or "passed"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, and write it."""
        tables = {name: self._judged(lines) for name, lines in self._lists.items()}
        if self._file is not None:
            document = {name: [asdict(v) for v in verdicts] for name, verdicts in tables.items()}
            self._file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        if not self._prints:
            return
        for name, verdicts in tables.items():
            terminalreporter.section(TITLES[name])
            for row in rows(verdicts):
                terminalreporter.line(row)
        if self._uncollected:
            terminalreporter.line(f"{self._uncollected} files were not collected: see the errors")

    def _judged(self, lines: Iterable[Line]) -> tuple[Verdict, ...]:
        return tuple(
            judge(
                line,
                [self._outcomes.get(node, "not run") for node in self._carriers.get(line.id, ())],
            )
            for line in lines
        )


def carried(item: pytest.Item) -> set[str]:
    """Return the lines that a test carries."""
    return {line for marker in item.iter_markers("conformance") for line in marker.args}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the table's two options."""
    group = parser.getgroup("conformance")
    group.addoption(
        "--conformance-table", action="store_true", help="print what came of every line of the list"
    )
    group.addoption("--conformance-json", type=Path, metavar="FILE", help="write the same as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Follow the run where somebody asked for the table."""
    prints = config.getoption("--conformance-table")
    file = config.getoption("--conformance-json")
    if prints or file:
        table = ConformanceTable(prints=prints, file=file)
        config.pluginmanager.register(table, "conformance-table")
