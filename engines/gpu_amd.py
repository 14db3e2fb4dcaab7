"""AMD's cards from what `amd-smi` and `rocm-smi` print as JSON; pure.

The tools changed their form with the releases of ROCm: a bare list, later {"gpu_data": list};
limits flat, later below "ppt0"; warnings before the JSON. What is not found is unknown.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from control_plane.errors import WattmeshError, shown
from engines.gpu_facts import GpuCard, known_number, known_text

_MIB_PER_UNIT = {"B": 1 / 2**20, "KB": 1 / 2**10, "MB": 1.0, "GB": 2.0**10}  # binary, all of them
_START = re.compile(r"^\s*([\[{])", re.MULTILINE)
_WHOLE_CARD = "SPX"  # the compute partition in which a device is one whole card


class ToolOutputError(WattmeshError):
    """A tool printed what is not its JSON."""

    def __init__(self, tool: str, text: str) -> None:
        super().__init__(f"{tool} printed {shown(text)}, expected JSON; its cards are unknown")


def parse_amd_smi(static: str, metric: str | None) -> tuple[GpuCard, ...]:
    """Return the cards of `amd-smi static --json` and, where it answered, `metric --json`.

    Raise ToolOutputError when `static` is not JSON; a broken `metric` leaves its facts unknown.
    """
    measured: dict[int, Mapping[str, Any]] = {}
    if metric is not None:
        with contextlib.suppress(ToolOutputError):
            measured = dict(_numbered("amd-smi metric", metric))
    return tuple(
        _amd_smi_card(index, row, measured.get(index, {}))
        for index, row in _numbered("amd-smi static", static)
    )


def parse_rocm_smi(text: str) -> tuple[GpuCard, ...]:
    """Return the cards of `rocm-smi --json`. Raise ToolOutputError when it is not JSON."""
    document = _decode("rocm-smi", text)
    if not isinstance(document, Mapping):
        raise ToolOutputError("rocm-smi", text)
    cards = []
    for key, row in document.items():
        number = str(key).removeprefix("card")
        if number != key and number.isdecimal() and isinstance(row, Mapping):
            cards.append(_rocm_smi_card(int(number), row))
    return tuple(sorted(cards, key=lambda card: card.index))


def _amd_smi_card(index: int, static: Mapping[str, Any], metric: Mapping[str, Any]) -> GpuCard:
    asic, limit, clock = _part(static, "asic"), _part(static, "limit"), _part(metric, "clock")
    limit = _part(limit, "ppt0") or limit
    sm, memory = _part(clock, "gfx_0"), _part(clock, "mem_0")
    name = known_text(asic.get("market_name"))
    if name is None:
        name = known_text(_part(static, "board").get("product_name"))
    return GpuCard(
        index=index,
        vendor="amd",
        uuid=known_text(asic.get("asic_serial")),
        name=_with_partition(name, _part(static, "partition")),
        memory_mib=_mib(_part(static, "vram").get("size")),
        architecture=known_text(asic.get("target_graphics_version")),
        power_enforced_w=known_number(limit.get("socket_power_limit", limit.get("socket_power"))),
        sm_clock_mhz=_whole(sm.get("clk")),
        sm_clock_max_mhz=_whole(sm.get("max_clk")),
        memory_clock_mhz=_whole(memory.get("clk")),
        memory_clock_max_mhz=_whole(memory.get("max_clk")),
        throttle_reasons=_throttle(_part(metric, "power").get("throttle_status")),
        energy_j=known_number(_part(metric, "energy").get("total_energy_consumption")),
    )


def _rocm_smi_card(index: int, row: Mapping[str, Any]) -> GpuCard:
    facts = {str(key).strip(" :").casefold(): value for key, value in row.items()}
    memory_bytes = known_number(facts.get("vram total memory (b)"))
    names = (known_text(facts.get(key)) for key in ("card series", "device name"))
    return GpuCard(
        index=index,
        vendor="amd",
        uuid=known_text(facts.get("unique id")),
        name=next((name for name in names if name is not None), None),
        memory_mib=None if memory_bytes is None else int(memory_bytes / 2**20) or None,
        architecture=known_text(facts.get("gfx version")),
        power_enforced_w=known_number(facts.get("max graphics package power (w)")),
        sm_clock_mhz=_whole(facts.get("sclk clock speed")),
        memory_clock_mhz=_whole(facts.get("mclk clock speed")),
    )


def _with_partition(name: str | None, partition: Mapping[str, Any]) -> str | None:
    """Return the name; of a part of a card with its mode, so that it does not count as a whole."""
    mode = known_text(partition.get("compute_partition", partition.get("accelerator_partition")))
    return name if name is None or mode in (None, _WHOLE_CARD) else f"{name} {mode}"


def _throttle(status: object) -> tuple[str, ...] | None:
    word = known_text(status)
    if word is None:
        return None
    return () if word.upper() == "UNTHROTTLED" else (word.lower(),)


def _mib(size: object) -> int | None:
    number = known_number(size)
    unit = known_text(size.get("unit")) if isinstance(size, Mapping) else None
    if number is None or unit not in _MIB_PER_UNIT:
        return None
    return int(number * _MIB_PER_UNIT[unit]) or None


def _whole(value: object) -> int | None:
    number = known_number(value)
    return None if number is None else round(number) or None


def _part(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _numbered(tool: str, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Return the rows of a tool's list with their cards' numbers."""
    document = _decode(tool, text)
    if isinstance(document, Mapping):
        document = document.get("gpu_data")
    if not isinstance(document, list):
        raise ToolOutputError(tool, text)
    for position, row in enumerate(document):
        if isinstance(row, Mapping):
            index = row.get("gpu")
            yield (index if isinstance(index, int) else position), row


def _decode(tool: str, text: str) -> Any:
    """Return the JSON document that a text ends with: the tools print warnings before it."""
    text = text.rstrip()
    for start in _START.finditer(text):
        try:
            document, end = json.JSONDecoder().raw_decode(text, start.start(1))
        except (ValueError, RecursionError):
            continue
        if end == len(text):
            return document
    raise ToolOutputError(tool, text)
