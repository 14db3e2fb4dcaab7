"""Reads vLLM's own arguments among those that a host gives an engine.

vLLM takes `--name value`, `--name=value`, and `_` for `-` in names.
"""

from collections.abc import Sequence


def flag_of(argument: str) -> str:
    """Return the flag that an argument is, in its one spelling; a value comes back as it is."""
    name, _, _ = argument.partition("=")
    return "--" + name[2:].replace("_", "-") if name.startswith("--") else name


def find_argument(args: Sequence[str], *flags: str) -> str | None:
    """Return the value that is given to one of these flags; the last one counts, as in vLLM."""
    found: str | None = None
    for position, argument in enumerate(args):
        if flag_of(argument) not in flags:
            continue
        _, given, value = argument.partition("=")
        if given:
            found = value
        elif position + 1 < len(args):
            found = args[position + 1]
    return found


def find_count(args: Sequence[str], *flags: str) -> int:
    """Return a whole number of at least 1; 1 where none is given, or none that can be read."""
    value = find_argument(args, *flags) or ""
    return max(1, int(value)) if value.isascii() and value.isdecimal() else 1
