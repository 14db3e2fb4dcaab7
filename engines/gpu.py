"""The GPU table: from a driver's name of a card to its numbers and one relative power.

A name that no row matches is unknown (None), never a guess: "A10" is not "A100", "L4" not "L40S".
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import yaml

REFERENCE_GPU = "A100-SXM-80GB"
REFERENCE_POWER = 100.0
_BRANDS = re.compile(r"^(nvidia|tesla|graphics device)\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One kind of GPU, as its maker's data sheet gives it."""

    name: str
    memory_gib: float
    bandwidth_gb_s: float
    bf16_tflops: float  # dense; FP16 where a card has no BF16
    compute_capability: str
    power_default_w: float
    patterns: tuple[str, ...]  # over the lower-cased name without its brand
    source: str


@dataclass(frozen=True, slots=True)
class GpuTable:
    """The known GPUs, in the order in which names are tried."""

    specs: tuple[GpuSpec, ...]

    def find(self, raw_name: str | bytes) -> GpuSpec | None:
        """Return the GPU that a driver means by this name, or None when it is unknown."""
        if isinstance(raw_name, bytes):
            raw_name = raw_name.decode(errors="replace")
        name = raw_name.strip().lower()
        while (stripped := _BRANDS.sub("", name)) != name:
            name = stripped
        for spec in self.specs:
            if any(re.fullmatch(pattern, name) for pattern in spec.patterns):
                return spec
        return None

    def named(self, name: str) -> GpuSpec:
        """Return the row of this name. Raise KeyError when there is none."""
        for spec in self.specs:
            if spec.name == name:
                return spec
        raise KeyError(name)

    def relative_power(self, spec: GpuSpec, count: int = 1) -> float:
        """Return the capacity of `count` such GPUs, where one A100-80GB SXM is 100.

        Prefill follows compute and decode follows memory bandwidth, so one number for both is the
        geometric mean of the two ratios: sqrt(compute ratio x bandwidth ratio) x 100 x count.
        """
        reference = self.named(REFERENCE_GPU)
        compute = spec.bf16_tflops / reference.bf16_tflops
        bandwidth = spec.bandwidth_gb_s / reference.bandwidth_gb_s
        return round(REFERENCE_POWER * math.sqrt(compute * bandwidth) * count, 1)


def load_gpu_table() -> GpuTable:
    """Return the table that ships with this package."""
    text = resources.files("engines").joinpath("gpu_table.yaml").read_text(encoding="utf-8")
    return parse_gpu_table(yaml.safe_load(text))


def parse_gpu_table(rows: Sequence[dict[str, object]]) -> GpuTable:
    """Return the table of these rows. Raise TypeError or KeyError on a row that is not one."""
    return GpuTable(tuple(_parse_row(row) for row in rows))


def _parse_row(row: dict[str, object]) -> GpuSpec:
    patterns = row["patterns"]
    if not isinstance(patterns, list):
        raise TypeError(f"GPU {row.get('name')!r}: patterns is {patterns!r}, expected a list")
    return GpuSpec(
        name=str(row["name"]),
        memory_gib=float(str(row["memory_gib"])),
        bandwidth_gb_s=float(str(row["bandwidth_gb_s"])),
        bf16_tflops=float(str(row["bf16_tflops"])),
        compute_capability=str(row["compute_capability"]),
        power_default_w=float(str(row["power_default_w"])),
        patterns=tuple(str(pattern) for pattern in patterns),
        source=str(row["source"]),
    )
