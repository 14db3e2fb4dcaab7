"""The one tree of errors, and the form in which bad input is reported.

A problem is a value, not an exception: parsers collect all of them and then either drop the one
bad engine or refuse the whole document with every problem at once.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_MAX_VALUE_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with an input, and what the system does meanwhile."""

    source: str  # the file, or "consul"
    path: str  # where in it, e.g. "models.acme/fox.versions.v1"
    value: str  # repr() of the value seen, or "missing"
    expected: str  # e.g. "a whole number of at least 1"
    meanwhile: str  # e.g. "the engine gets no traffic until it registers again"

    def __str__(self) -> str:
        found = "is missing" if self.value == "missing" else f"is {self.value}"
        return f"{self.source}: {self.path} {found}, expected {self.expected}; {self.meanwhile}"


def shown(value: object) -> str:
    """Return repr(value), cut so that a hostile value cannot flood a log."""
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 1] + "…"


class WattmeshError(Exception):
    """Root of every error that Wattmesh raises on purpose."""


class InputError(WattmeshError):
    """A document that cannot be used; carries all its problems, never only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class PayloadError(WattmeshError):
    """Resources that our own payload checks refuse; nothing of them is published."""

    def __init__(self, violations: Iterable[str]) -> None:
        self.violations = tuple(violations)
        super().__init__("\n".join(self.violations))
