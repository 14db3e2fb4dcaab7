"""`wattmesh gpu`: this host's cards, and what follows from them."""

from collections.abc import Iterator
from typing import Any

from control_plane.capacity import (
    DEFAULT_MIX,
    Capacity,
    GpuFacts,
    engine_capacity,
    find_gpu,
    reference_capacity,
    relative_power,
)
from control_plane.cli import FINDING, OK
from control_plane.cli.output import Output, print_data, print_problems, print_table
from control_plane.fleet import DEFAULT_GPU_POWER
from engines.compute_capability import show_compute_capability
from engines.gpu import GpuTable
from engines.gpu_facts import GpuCard, GpuSurvey, power_limit

COLUMNS = (
    "GPU",
    "name",
    "model",
    "memory",
    "compute",
    "power limit",
    "SM clock",
    "throttled by",
    "prefill/s",
    "decode/s",
    "gpu_power",
)


def print_gpus(survey: GpuSurvey, table: GpuTable, output: Output) -> int:
    """Print the cards and return the exit status: 1 when one of them is lost."""
    report = gpu_report(survey, table)
    if output is not Output.TABLE:
        print_data(report, output)
    elif report["gpus"]:
        print_table("", COLUMNS, (row for gpu in report["gpus"] for row in _rows(gpu)))
    else:
        lines = ["no GPU found on this host", *(f"  {reason}" for reason in survey.reasons)]
        print("\n".join(lines))  # noqa: T201 what was asked for
    print_problems(_findings(report["gpus"]))
    return FINDING if any(card.lost for card in survey.cards) else OK


def gpu_report(survey: GpuSurvey, table: GpuTable) -> dict[str, Any]:
    """Return the cards as JSON values: what the driver says, the table's row, the capacity.

    Capacities are those of one card (or MIG device) for one engine, at the default mix and under
    the power limit in force. null = unknown.
    """
    reference = reference_capacity(table)
    return {
        "gpus": [_gpu(card, table, reference) for card in survey.cards],
        "reasons": list(survey.reasons),
    }


def _gpu(card: GpuCard, table: GpuTable, reference: Capacity) -> dict[str, Any]:
    capability = card.compute_capability
    derived = _derived(card, card.name, table, reference)
    return {
        "index": card.index,
        "vendor": card.vendor,
        "uuid": card.uuid,
        "name": card.name,
        "lost": card.lost,
        "memory_mib": card.memory_mib,
        "compute_capability": None if capability is None else show_compute_capability(capability),
        "architecture": card.architecture,
        "sm_clock_mhz": card.sm_clock_mhz,
        "sm_clock_max_mhz": card.sm_clock_max_mhz,
        "memory_clock_mhz": card.memory_clock_mhz,
        "memory_clock_max_mhz": card.memory_clock_max_mhz,
        "throttle_reasons": None if card.throttle_reasons is None else list(card.throttle_reasons),
        "energy_j": card.energy_j,
        **derived,
        "mig_enabled": card.mig_enabled,
        "mig_devices": [
            {
                "uuid": device.uuid,
                "name": device.name,
                "memory_mib": device.memory_mib,
                **_derived(card, device.name, table, reference),
            }
            for device in card.mig_devices
        ],
    }


def _derived(
    card: GpuCard, name: str | None, table: GpuTable, reference: Capacity
) -> dict[str, Any]:
    spec, compute_share, memory_share = find_gpu(table, name or "")
    limit = power_limit(card, spec.power_default_w if spec else None)
    value: dict[str, Any] = {
        "model": spec.name if spec else None,
        "power_limit_w": limit.watts,
        "power_limit_source": limit.source.value,
        "power_default_w": card.power_default_w,
        "prefill_tokens_per_s": None,
        "decode_tokens_per_s": None,
        "prefill_cap_factor": None,
        "decode_cap_factor": None,
        "gpu_power": None,
    }
    if spec is None:
        return value
    capacity = engine_capacity(
        GpuFacts(
            spec=spec,
            compute_share=compute_share,
            memory_share=memory_share,
            power_limit_w=limit.watts,
            power_default_w=card.power_default_w,
        )
    )
    return value | {
        "prefill_tokens_per_s": round(capacity.prefill_tokens_per_s, 1),
        "decode_tokens_per_s": round(capacity.decode_tokens_per_s, 1),
        "prefill_cap_factor": round(capacity.prefill_cap_factor, 4),
        "decode_cap_factor": round(capacity.decode_cap_factor, 4),
        "gpu_power": relative_power(capacity, DEFAULT_MIX, reference),
    }


def _rows(gpu: dict[str, Any]) -> Iterator[list[str]]:
    reasons = gpu["throttle_reasons"]
    throttled = "unknown" if reasons is None else ", ".join(reasons) or "nothing"
    clock = _of(gpu["sm_clock_mhz"], gpu["sm_clock_max_mhz"], "MHz")
    capability = gpu["compute_capability"] or gpu["architecture"] or "unknown"
    yield [
        str(gpu["index"]),
        "lost" if gpu["lost"] else gpu["name"] or "unknown",
        gpu["model"] or "unknown",
        _unit(gpu["memory_mib"], "MiB"),
        capability,
        _of(gpu["power_limit_w"], gpu["power_default_w"], "W"),
        clock,
        throttled,
        *_capacity(gpu),
    ]
    for position, device in enumerate(gpu["mig_devices"]):
        yield [
            f"{gpu['index']}.{position}",
            device["name"] or "unknown",
            device["model"] or "unknown",
            _unit(device["memory_mib"], "MiB"),
            *([""] * 4),
            *_capacity(device),
        ]


def _capacity(value: dict[str, Any]) -> list[str]:
    keys = ("prefill_tokens_per_s", "decode_tokens_per_s", "gpu_power")
    texts = ["-" if value[key] is None else f"{value[key]:.0f}" for key in keys[:2]]
    return [*texts, "-" if value["gpu_power"] is None else f"{value['gpu_power']:g}"]


def _findings(gpus: list[dict[str, Any]]) -> Iterator[str]:
    for gpu in gpus:
        if gpu["lost"]:
            yield (
                f"GPU {gpu['index']} is lost ({gpu['lost']}): no engine can run on it until it is "
                "reset or the host is started again"
            )
        elif gpu["model"] is None:
            yield (
                f"GPU {gpu['index']} is {gpu['name']!r}, which is not in the GPU table: an engine "
                f"on it counts as gpu_power {DEFAULT_GPU_POWER:g} unless node.yaml gives its own"
            )


def _of(value: float | None, most: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    return f"{value:g} {unit}" if most in (None, value) else f"{value:g} of {most:g} {unit}"


def _unit(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value} {unit}"
