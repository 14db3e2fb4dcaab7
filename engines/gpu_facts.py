"""What is known of a host's GPUs: values, and how NVML's raw answers become them.

None = unknown, to the end. A driver has many words for it: an error "Not Supported", a text
"[N/A]", a 0 where no 0 can be. None of them may turn into a number.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from engines.compute_capability import ComputeCapability
from engines.gpu import decode_name

_MIB = 1024 * 1024
_GONE = "the driver does not show it any more"
_NUMBER = re.compile(r"\(?\s*([0-9]+(?:\.[0-9]+)?)")

# NVML's clocks event reasons (nvmlClocksEventReasons): why a clock is below what was asked for.
_REASONS: Mapping[int, str] = MappingProxyType(
    {
        0x001: "idle",
        0x002: "application clocks",
        0x004: "power cap",
        0x008: "hardware slowdown",
        0x010: "sync boost",
        0x020: "software thermal slowdown",
        0x040: "hardware thermal slowdown",
        0x080: "power brake",
        0x100: "display clocks",
    }
)


class LimitSource(StrEnum):
    """Where a power limit comes from, the most telling first."""

    ENFORCED = "enforced"  # what holds now: the least of all limits that are set
    MANAGEMENT = "management"  # what an operator set
    DEFAULT = "default"  # what the card starts with
    TABLE = "table"  # what the maker's data sheet says
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PowerLimit:
    """A card's power limit in W and who says so; None only together with UNKNOWN."""

    watts: float | None
    source: LimitSource


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A slice of a card (Multi-Instance GPU), a device of its own for programs."""

    uuid: str | None
    name: str | None  # as the driver reports it: "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
    memory_mib: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCard:
    """One card as its driver describes it. None = unknown."""

    index: int  # as the driver's own tools count; apart for each vendor
    vendor: Literal["nvidia", "amd"]
    uuid: str | None = None
    name: str | None = None  # as the driver reports it
    memory_mib: int | None = None
    compute_capability: ComputeCapability | None = None  # CUDA's
    architecture: str | None = None  # AMD's, e.g. "gfx942"
    power_enforced_w: float | None = None
    power_management_w: float | None = None
    power_default_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None  # () = the clocks are what was asked for
    energy_j: float | None = None  # drawn since the driver was loaded
    mig_enabled: bool | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    lost: str | None = None  # the driver's words for why nothing of the card can be read


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSurvey:
    """All cards of a host, and for each kind of driver that answered none, why."""

    cards: tuple[GpuCard, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReading:
    """What NVML answered about one device, unchanged. None = no answer."""

    name: str | bytes | None = None
    uuid: str | bytes | None = None
    memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    enforced_limit_mw: int | None = None
    management_limit_mw: int | None = None
    default_limit_mw: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    event_reasons: int | None = None  # bits
    energy_mj: int | None = None
    mig_mode: int | None = None  # the current one: 0 off, 1 on
    mig: tuple["NvmlReading", ...] = ()


def card_of_nvml(index: int, reading: NvmlReading) -> GpuCard:
    """Return the card that NVML's answers describe, in our units."""
    return GpuCard(
        index=index,
        vendor="nvidia",
        uuid=known_text(reading.uuid),
        name=known_text(reading.name),
        memory_mib=_mib(reading.memory_bytes),
        compute_capability=_capability(reading.compute_capability),
        power_enforced_w=_watts(reading.enforced_limit_mw),
        power_management_w=_watts(reading.management_limit_mw),
        power_default_w=_watts(reading.default_limit_mw),
        sm_clock_mhz=reading.sm_clock_mhz or None,
        sm_clock_max_mhz=reading.sm_clock_max_mhz or None,
        memory_clock_mhz=reading.memory_clock_mhz or None,
        memory_clock_max_mhz=reading.memory_clock_max_mhz or None,
        throttle_reasons=throttle_words(reading.event_reasons),
        energy_j=None if reading.energy_mj is None else reading.energy_mj / 1000,
        mig_enabled=None if reading.mig_mode is None else reading.mig_mode == 1,
        mig_devices=tuple(
            MigDevice(
                uuid=known_text(item.uuid),
                name=known_text(item.name),
                memory_mib=_mib(item.memory_bytes),
            )
            for item in reading.mig
        ),
    )


def power_limit(card: GpuCard, table_w: float | None) -> PowerLimit:
    """Return a card's limit: enforced, management, default, the table's for its model, unknown."""
    for watts, source in (
        (card.power_enforced_w, LimitSource.ENFORCED),
        (card.power_management_w, LimitSource.MANAGEMENT),
        (card.power_default_w, LimitSource.DEFAULT),
        (table_w, LimitSource.TABLE),
    ):
        if watts is not None:
            return PowerLimit(watts, source)
    return PowerLimit(None, LimitSource.UNKNOWN)


def remember(before: GpuSurvey | None, now: GpuSurvey) -> GpuSurvey:
    """Return what is known now, with the last facts of cards that have become unreadable.

    A card that is lost, or that its driver does not show any more, is still the card it was: its
    engine keeps its weight while its health check tells the rest.
    """
    if before is None:
        return now
    known = {(card.vendor, card.index): card for card in before.cards}
    cards = []
    for card in now.cards:
        last = known.pop((card.vendor, card.index), None)
        cards.append(card if card.lost is None or last is None else replace(last, lost=card.lost))
    gone = [replace(card, lost=card.lost or _GONE) for card in known.values()]
    ordered = sorted([*cards, *gone], key=lambda card: (card.vendor != "nvidia", card.index))
    return replace(now, cards=tuple(ordered))


def throttle_words(bits: int | None) -> tuple[str, ...] | None:
    """Return NVML's event reasons as words; a bit that has none here is named by its number."""
    if bits is None:
        return None
    known = [word for bit, word in _REASONS.items() if bits & bit]
    rest = bits & ~sum(_REASONS)
    unknown = [f"reason {1 << n:#x}" for n in range(rest.bit_length()) if rest >> n & 1]
    return (*known, *unknown)


def known_number(value: object) -> float | None:
    """Return the number above 0 in what a tool printed, or None.

    "750.0", "(1090Mhz)", 750 and {"value": 750, "unit": "W"} are numbers; "[N/A]", "N/A",
    "[Not Supported]", 0 and anything else are not.
    """
    if isinstance(value, Mapping):
        return known_number(value.get("value"))
    if isinstance(value, str):
        match = _NUMBER.match(value.strip())
        value = match[1] if match else None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def known_text(value: object) -> str | None:
    """Return a text that says something: not empty, and none of a driver's words for unknown."""
    if not isinstance(value, str | bytes):
        return None
    text = decode_name(value)
    return None if text.strip("[]").casefold() in _NO_TEXTS else text


_NO_TEXTS = frozenset({"", "n/a", "none", "unknown", "unknown error", "not supported"})


def _mib(size_bytes: int | None) -> int | None:
    return size_bytes // _MIB or None if size_bytes else None


def _watts(milliwatts: int | None) -> float | None:
    return milliwatts / 1000 if milliwatts and milliwatts > 0 else None


def _capability(pair: tuple[int, int] | None) -> ComputeCapability | None:
    return None if pair is None or pair[0] <= 0 else (int(pair[0]), int(pair[1]))
