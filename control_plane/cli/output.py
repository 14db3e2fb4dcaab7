"""What a command prints: data on standard output in the asked form, problems on standard error."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

_TERMINAL_FALLBACK_COLUMNS = 160  # a pipe has no width; cut columns would be useless in it


class Output(StrEnum):
    """The forms of `-o`."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def print_data(value: Any, output: Output) -> None:
    """Print JSON values as JSON or YAML."""
    if output is Output.YAML:
        import yaml  # noqa: PLC0415

        yaml.safe_dump(value, sys.stdout, sort_keys=False, allow_unicode=True)
    else:
        json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table as wide as the terminal, or wide enough where there is none."""
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if title:
        print(title)  # noqa: T201 a rich title is padded to the table's width
    table = Table(box=None, pad_edge=False)
    for column in columns:
        right = column in _NUMBERS
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        # Names come from the catalog: as Text they are never read as markup.
        table.add_row(*(Text(cell) for cell in row))
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _TERMINAL_FALLBACK_COLUMNS
    Console(width=width, highlight=False).print(table)


def print_problems(lines: Iterable[str]) -> None:
    """Print problems to standard error, one a line."""
    for line in lines:
        print(" ".join(line.splitlines()), file=sys.stderr)  # noqa: T201


def engine_rows(engines: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Return the table rows of the engines of a plan's JSON."""
    return [
        [
            engine["engine"],
            engine["node"],
            engine["model"],
            engine["version"] or "-",
            _gpu(engine),
            f"{engine['gpu_power']:g} ({engine['power_source']})",
            str(engine["weight"]),
            f"{engine['share'] * 100:.1f} %",
            engine["state"],
        ]
        for engine in engines
    ]


ENGINE_COLUMNS = (
    "engine",
    "node",
    "model",
    "version",
    "GPU",
    "gpu_power",
    "weight",
    "share",
    "state",
)


def plan_rows(engines: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Return the rows of the whole plan: how each weight comes about."""
    return [
        [
            engine["engine"],
            engine["node"],
            engine["model"],
            engine["version"] or "-",
            _gpu(engine),
            _number(engine["gpu_power_limit_w"]),
            _number(engine["prefill_tokens_per_s"]),
            _number(engine["decode_tokens_per_s"]),
            f"{engine['gpu_power']:g} ({engine['power_source']})",
            f"{engine['capacity']:g}",
            str(engine["weight"]),
            f"{engine['share'] * 100:.1f} %",
            str(engine["max_connections"]),
            engine["state"],
        ]
        for engine in engines
    ]


PLAN_COLUMNS = (
    "engine",
    "node",
    "model",
    "version",
    "GPU",
    "cap_W",
    "prefill/s",
    "decode/s",
    "gpu_power",
    "capacity",
    "weight",
    "share",
    "max_conn",
    "state",
)
_NUMBERS = frozenset(
    {"cap_W", "prefill/s", "decode/s", "gpu_power", "capacity", "weight", "share", "max_conn"}
)


def model_rows(models: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each model: how it is split, and what bounds it."""
    return [
        [
            model["model"],
            "yes" if model["live"] else "no",
            model["balance"],
            ", ".join(f"{part['version'] or '-'} {part['weight']}" for part in model["versions"]),
            limit_text(model["request_limit"]),
        ]
        for model in models
    ]


MODEL_COLUMNS = ("model", "live", "balance", "versions", "request limit")


def limit_text(limit: Mapping[str, Any] | None) -> str:
    """Return a request limit as people read it."""
    return "-" if limit is None else f"{limit['requests_per_s']:g}/s, burst {limit['burst']}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _gpu(engine: Mapping[str, Any]) -> str:
    if engine["gpu"] is None:
        return "unknown"
    count = engine["gpu_count"] or 1
    return f"{count} x {engine['gpu']}" if count > 1 else str(engine["gpu"])
