"""CUDA compute capabilities as pairs of numbers: as texts, "12.0" would come before "7.5"."""

import re

ComputeCapability = tuple[int, int]

# "9.0", "9.0a", "sm_90", "sm_100f": the last digit of the short form is the minor number.
_DOTTED = re.compile(r"([0-9]{1,3})\.([0-9]{1,2})[a-z]?")
_SHORT = re.compile(r"(?:sm|compute)_?([0-9]{1,3})([0-9])[a-z]?")


def parse_compute_capability(value: str | ComputeCapability | None) -> ComputeCapability | None:
    """Return (major, minor) of what a driver, a table or a person wrote; None = unknown.

    Unknown is not "too old": whoever compares has a rule of its own for it.
    """
    if value is None or isinstance(value, tuple):
        return value
    text = value.strip().lower()
    match = _DOTTED.fullmatch(text) or _SHORT.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else None


def show_compute_capability(value: ComputeCapability) -> str:
    """Return the form in which NVIDIA writes it: "9.0"."""
    return f"{value[0]}.{value[1]}"
