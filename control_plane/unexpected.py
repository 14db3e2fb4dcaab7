"""Exceptions that nobody expected: told once each, counted always, and never the end of the rest.

Whoever notes one goes on with the last good state. What is expected of bad input is an InputError;
what arrives here is a fault of ours, so the log holds its traceback.
"""

import structlog

from control_plane.errors import Problem, shown
from control_plane.metrics import Metrics

logger = structlog.get_logger()

_MAX_TOLD = 1000  # distinct errors that are remembered


class UnexpectedErrors:
    """Logs each distinct exception once, with its traceback, and counts all of them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._told: set[tuple[str, str]] = set()

    def note(self, where: str, error: Exception, *, meanwhile: str) -> Problem:
        """Return an exception as a problem of `where`, a word that is a metric's label, too."""
        self._metrics.unexpected_errors.labels(where).inc()
        problem = unexpected(where, error, meanwhile=meanwhile)
        key = (where, problem.value)
        if key not in self._told:
            if len(self._told) >= _MAX_TOLD:
                self._told.clear()
            self._told.add(key)
            logger.error("unexpected error", where=where, meanwhile=meanwhile, exc_info=error)
        return problem


def unexpected(source: str, error: Exception, *, meanwhile: str) -> Problem:
    """Return an exception as a problem of a source."""
    return Problem(
        source=source,
        path="computing it",
        value=f"broken off by {type(error).__name__}: {shown(str(error))}",
        expected="no such error (a fault of Wattmesh's own)",
        meanwhile=meanwhile,
    )
