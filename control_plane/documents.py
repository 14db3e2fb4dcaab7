"""Strict YAML documents: read, checked and reported with all their errors at once.

Shared by policy.yaml and node.yaml. Durations and sizes must carry a unit, so that nobody has to
guess whether 30 means seconds or milliseconds.
"""

import re
from collections.abc import Hashable
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ValidationError

from control_plane.errors import InputError, Problem, shown

MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
MAX_REPEATED_VALUES = 100_000  # that aliases may stand for, all together
_MAX_NUMBER_CHARS = 100  # PyYAML's time grows with the square of a number's length
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNITS_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_QUANTITY = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?([A-Za-z]+)", re.ASCII)

Document = TypeVar("Document", bound=BaseModel)


def parse_duration_s(value: object) -> float:
    """Return the seconds of "500ms", "30s", "10m" or "1h". Raise ValueError on anything else."""
    return _quantity(value, _UNITS_S, 'a duration with a unit, e.g. "500ms", "30s", "10m"')


def parse_size_bytes(value: object) -> int:
    """Return the bytes of "512KiB" or "32MiB". Raise ValueError on anything else."""
    return int(_quantity(value, _UNITS_BYTES, 'a size with a unit, e.g. "512KiB", "32MiB"'))


def _quantity(value: object, units: dict[str, Any], expected: str) -> float:
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError(expected)
    return float(match[1]) * float(units[match[2]])


def read_name(value: object) -> object:
    """Return a name's text where YAML reads it as a number: version 2 or 1.5 without quotes."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


Name = Annotated[str, BeforeValidator(read_name)]
Duration = Annotated[float, BeforeValidator(parse_duration_s)]
Size = Annotated[int, BeforeValidator(parse_size_bytes)]


def load_document(
    data: bytes, document_type: type[Document], *, source: str, meanwhile: str
) -> Document:
    """Return the checked document. Raise InputError with every problem in it.

    An empty document is the same as `{}`: every field takes its default.
    """

    def refuse(path: str, value: str, expected: str) -> InputError:
        return InputError(
            [Problem(source=source, path=path, value=value, expected=expected, meanwhile=meanwhile)]
        )

    if len(data) > MAX_DOCUMENT_BYTES:
        raise refuse("document", f"{len(data)} bytes", f"at most {MAX_DOCUMENT_BYTES} bytes")
    try:
        raw = yaml.load(data.decode(), Loader=_BoundedLoader)  # noqa: S506 a SafeLoader below
    except UnicodeDecodeError as error:
        raise refuse("document", f"a byte at {error.start}", "UTF-8 text") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise refuse("document", _yaml_fault(error), "valid YAML") from error
    try:
        return document_type.model_validate({} if raw is None else raw)
    except ValidationError as error:
        raise InputError(_problems(error, source, meanwhile)) from error


def _yaml_fault(error: Exception) -> str:
    """Return where a document stops being YAML, and why."""
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {reason}" if mark else shown(reason)


# What pydantic calls by the names of Python and of our classes, in the words of YAML.
_QUOTED = "in quotes where YAML reads something else"
_EXPECTED = {
    "extra_forbidden": "no such field",
    "missing": "a value",
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
    "string_type": f"text, {_QUOTED}",
    "string_unicode": "text without lone surrogates",
    "invalid_key": f"keys that are text, {_QUOTED}",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "too_short": "a list that is not empty",
    "string_too_short": "text that is not empty",
}


def _problems(error: ValidationError, source: str, meanwhile: str) -> list[Problem]:
    problems = []
    for detail in error.errors(include_url=False):
        missing = detail["type"] == "missing"
        location, expected = detail["loc"], _EXPECTED.get(detail["type"], detail["msg"])
        if location[-1:] == ("[key]",):  # of a mapping; the place is the mapping's
            location, expected = location[:-2], _EXPECTED["invalid_key"]
        problems.append(
            Problem(
                source=source,
                path=_path(location),
                value="missing" if missing else shown(detail["input"]),
                expected=expected.removeprefix("Value error, ").removeprefix("Input should be "),
                meanwhile=meanwhile,
            )
        )
    return problems


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "document"


class _BoundedLoader(yaml.SafeLoader):
    """SafeLoader for documents of anybody: strict, bounded, and with one kind of error.

    A key that is given twice is refused, where YAML would keep the last one silently. Aliases are
    counted as what they stand for while the document is composed, before anything is made of it. A
    scalar that its tag cannot hold is a YAMLError, where PyYAML raises whatever happens inside.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._repeated = 0  # values that aliases stand for, so far
        self._composed = 0
        self._sizes: dict[yaml.Node, int] = {}  # of the values that aliases may stand for

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._composed + self._repeated
        node: yaml.Node | None = super().compose_node(parent, index)
        if node is None:
            return node
        if isinstance(event, yaml.AliasEvent):
            if node not in self._sizes:
                raise _fault("an alias within what it stands for", event.start_mark)
            self._repeated += self._sizes[node]
        else:
            self._composed += 1
        if self._repeated > MAX_REPEATED_VALUES:
            raise _fault(f"aliases for more than {MAX_REPEATED_VALUES} values", event.start_mark)
        if getattr(event, "anchor", None) is not None:
            self._sizes.setdefault(node, self._composed + self._repeated - before)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        seen = shown(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"
        if kind in ("int", "float") and len(node.value) > _MAX_NUMBER_CHARS:
            raise _fault(f"{seen} is too long for a number", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:
            raise _fault(f"{seen} is no {kind}", node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key_node, yaml.ScalarNode):
                raise _fault("a key that is no text", key_node.start_mark)
            if key_node.value in seen:
                raise _fault(f"key {shown(key_node.value)} given twice", key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _fault(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
