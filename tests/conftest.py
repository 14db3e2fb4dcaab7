"""What holds for every test: real programs, or a skip that says why and is listed in the end."""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import hypothesis
import pytest

from tests.support import paths

pytest_plugins = ("tests.support.conformance",)

# Machines that run tests are slow and shared: no deadline per example, and few of them.
hypothesis.settings.register_profile("wattmesh", deadline=None, max_examples=60, print_blob=True)
hypothesis.settings.load_profile("wattmesh")


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Skip what needs a program that is not here, with the reason."""
    for tool in paths.REASONS:
        reason = paths.reason(tool)
        if reason is None:
            continue
        for item in items:
            if item.get_closest_marker(tool):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name every test that did not run, and what could not be set up for it."""
    not_set_up = paths.TOOLS / "not-set-up"
    reasons = not_set_up.read_text().splitlines() if not_set_up.is_file() else []
    skipped = terminalreporter.getreports("skipped")
    if not (reasons or skipped):
        return
    terminalreporter.section("not tested here", yellow=True)
    for reason in reasons:
        terminalreporter.line(f"not set up: {reason}")
    for report in skipped:
        terminalreporter.line(f"skipped: {report.nodeid}: {_reason(report)}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):  # file, line, message
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)


@pytest.fixture
def short_tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterable[Path]:
    """A directory with a short path: a Unix socket's path may be 107 bytes long."""
    path = Path(tempfile.mkdtemp(prefix="wm-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
