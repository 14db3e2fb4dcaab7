"""The GPU table: from a driver's name of a card to its numbers.

A name that no row matches is unknown (None), never a guess: "A10" is not "A100", "L4" not "L40S".
"""

import re
from dataclasses import dataclass
from importlib import resources
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel

from control_plane.documents import load_document
from control_plane.errors import InputError, Problem, shown
from engines.compute_capability import parse_compute_capability

REFERENCE_GPU = "A100-SXM-80GB"
REFERENCE_POWER = 100.0
_BRANDS = re.compile(r"^(nvidia|tesla|graphics device|amd|instinct|intel|habana)\s+")
# The form of pci.ids, which AMD's tools fall back on: "Aqua Vanjaram [Instinct MI300X]".
_CODENAME = re.compile(r"[^\[\]]+\[([^\[\]]+)\]")
_MEANWHILE = "no GPU is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One kind of GPU, as its maker's data sheet gives it; what the driver counts as one device."""

    name: str
    memory_gib: float
    bandwidth_gb_s: float
    bf16_tflops: float  # dense, accumulated in FP32; FP16 where a card has no BF16
    compute_capability: str | None  # CUDA's, e.g. "9.0"; None for the cards of other makers
    power_default_w: float
    patterns: tuple[str, ...]  # over the lower-cased name without its brand
    source: str


@dataclass(frozen=True, slots=True)
class GpuTable:
    """The known GPUs, in the order in which names are tried."""

    specs: tuple[GpuSpec, ...]

    def find(self, raw_name: str | bytes) -> GpuSpec | None:
        """Return the GPU that a driver means by this name, or None when it is unknown.

        The name of a MIG slice is no card's name: `control_plane.capacity.find_gpu` reads those.
        """
        name = _bare_name(raw_name)
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


def load_gpu_table() -> GpuTable:
    """Return the table that ships with this package."""
    data = resources.files("engines").joinpath("gpu_table.yaml").read_bytes()
    return parse_gpu_table(data, source="gpu_table.yaml")


def parse_gpu_table(data: bytes, *, source: str) -> GpuTable:
    """Return the table of a YAML list of rows. Raise InputError with every problem in it."""
    rows = load_document(data, _TableDocument, source=source, meanwhile=_MEANWHILE).root
    names = [row.name for row in rows]
    problems = [
        Problem(
            source=source,
            path=f"[{index}].name",
            value=shown(name),
            expected="a name that no other row has",
            meanwhile=_MEANWHILE,
        )
        for index, name in enumerate(names)
        if name in names[:index]
    ]
    if problems:
        raise InputError(problems)
    return GpuTable(tuple(_spec(row) for row in rows))


def decode_name(raw_name: str | bytes) -> str:
    """Return a driver's name as text: old bindings answer bytes, some with closing NULs."""
    text = raw_name.decode(errors="replace") if isinstance(raw_name, bytes) else raw_name
    return " ".join(text.replace("\0", " ").split())


def _bare_name(raw_name: str | bytes) -> str:
    name = decode_name(raw_name).lower()
    if codename := _CODENAME.fullmatch(name):
        name = codename[1]
    while (stripped := _BRANDS.sub("", name)) != name:
        name = stripped
    return name


def _check_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from error
    return value


def _check_compute_capability(value: str) -> str:
    if parse_compute_capability(value) is None:
        raise ValueError('a CUDA compute capability, e.g. "9.0", or null')
    return value


_Text = Annotated[str, Field(min_length=1)]
_Number = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: _Text
    memory_gib: _Number
    bandwidth_gb_s: _Number
    bf16_tflops: _Number
    compute_capability: Annotated[str, AfterValidator(_check_compute_capability)] | None
    power_default_w: _Number
    patterns: Annotated[list[Annotated[_Text, AfterValidator(_check_pattern)]], Field(min_length=1)]
    source: _Text


class _TableDocument(RootModel[list[_Row]]):
    """The rows of the table."""


def _spec(row: _Row) -> GpuSpec:
    return GpuSpec(**{**row.model_dump(), "patterns": tuple(row.patterns)})
