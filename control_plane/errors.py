"""The one tree of errors, and the form in which bad input is reported.

A problem is a value, not an exception: parsers collect all of them and then either drop the one
bad engine or refuse the whole document with every problem at once.
"""

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

_MAX_VALUE_CHARS = 120
_MAX_INT_BITS = 400  # beyond, Python may refuse to print a number


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


class _BoundedRepr(reprlib.Repr):
    """repr() whose work is bounded, too: a text is cut before it is quoted, a container sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 8

    def repr_str(self, x: str, level: int) -> str:
        return repr(x[:_MAX_VALUE_CHARS])

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x[:_MAX_VALUE_CHARS])

    def repr_dict(self, x: dict[object, object], level: int) -> str:
        if level <= 0:
            return "{...}"
        pairs = [
            f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}"
            for key, value in islice(x.items(), self.maxdict)
        ]
        return "{" + ", ".join(pairs + ["..."] * (len(x) > self.maxdict)) + "}"

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= _MAX_INT_BITS else "a number of more than 100 digits"

    def repr_instance(self, x: object, level: int) -> str:
        return repr(x)  # of the few other kinds that documents hold: dates, floats


_BOUNDED = _BoundedRepr()


def shown(value: object) -> str:
    """Return repr(value), cut so that a hostile value floods no log and takes no time."""
    text = _BOUNDED.repr(value)
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
