"""Which of a host's cards an engine uses, and what it may declare of them.

An engine takes the first cards that its process sees, as many as its parallel sizes make. What
node.yaml says of them wins over what the driver says. Where it is not certain which cards they
are, nothing is declared of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from control_plane.capacity import find_gpu
from control_plane.metadata import EngineMetadata
from engines.compute_capability import ComputeCapability, show_compute_capability
from engines.gpu import GpuTable
from engines.gpu_facts import GpuCard, GpuSurvey, MigDevice, power_limit
from engines.node_config import VISIBLE_DEVICES, EngineSpec

_Ordered = TypeVar("_Ordered", int, float, ComputeCapability)
# The enforced limit of some cards trembles; what moves less is no change of a cap.
_LEAST_CHANGE_W = 1.0
_LEAST_CHANGE_FRACTION = 0.01


@dataclass(frozen=True, slots=True)
class EngineGpu:
    """A device that an engine uses: a card, or a MIG slice of one."""

    card: GpuCard
    mig: MigDevice | None = None

    @property
    def name(self) -> str | None:
        """The driver's name of the device."""
        return self.mig.name if self.mig is not None else self.card.name

    @property
    def memory_mib(self) -> int | None:
        """The memory of the device."""
        return self.mig.memory_mib if self.mig is not None else self.card.memory_mib

    def __str__(self) -> str:
        return f"GPU {self.card.index} ({self.name or 'unknown'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The devices of an engine; none = unknown, or it uses none."""

    gpus: tuple[EngineGpu, ...] = ()
    missing: tuple[int | str, ...] = ()  # of the engine's `gpus`: what this host does not have
    present: int = 0  # devices of this host


def assign_gpus(spec: EngineSpec, env: Mapping[str, str], survey: GpuSurvey) -> Assignment:
    """Return the devices that an engine with this environment uses on this host."""
    if spec.gpus == () or (spec.gpus is None and spec.launcher == "simulated"):
        return Assignment()
    devices = _devices(survey)
    if not devices:  # nobody knows what is there, so nothing is missing
        return Assignment()
    asked = spec.gpus if spec.gpus is not None else _visible(env)
    if asked is None:
        chosen: list[EngineGpu | None] = list(devices[: spec.ranks])
    else:
        chosen = [_find(devices, item) for item in asked]
    by_index = asked is None or any(isinstance(item, int) for item in asked)
    if by_index and not _is_numbered_alike(devices, env):
        return Assignment(present=len(devices))
    found = [gpu for gpu in chosen if gpu is not None]
    if len(found) < len(chosen):
        missing = zip(spec.gpus or (), chosen, strict=False)
        return Assignment(
            missing=tuple(item for item, gpu in missing if gpu is None), present=len(devices)
        )
    return Assignment(gpus=tuple(found[: spec.ranks]), present=len(devices))


def with_facts(spec: EngineSpec, assignment: Assignment, table: GpuTable) -> EngineSpec:
    """Return the spec with what the driver says of its cards where node.yaml says nothing.

    Of several cards the least counts: tensor parallel ranks wait for the slowest. Facts that one
    of them does not tell, and the name of cards that differ, stay unknown.
    """
    gpus = assignment.gpus
    count = len(gpus) or min(len(spec.gpus or ()), spec.ranks) or None
    spec = replace(spec, gpu_count=spec.gpu_count or count)
    if not gpus:
        return spec
    names = {gpu.name for gpu in gpus}
    capability = _least([gpu.card.compute_capability for gpu in gpus])
    return replace(
        spec,
        gpu_model=spec.gpu_model or (names.pop() if len(names) == 1 else None),
        gpu_memory_mib=spec.gpu_memory_mib or _least([gpu.memory_mib for gpu in gpus]),
        gpu_compute_capability=spec.gpu_compute_capability
        or (None if capability is None else show_compute_capability(capability)),
        gpu_power_limit_w=spec.gpu_power_limit_w or _least([_limit_w(gpu, table) for gpu in gpus]),
        gpu_power_default_w=spec.gpu_power_default_w
        or _least([gpu.card.power_default_w for gpu in gpus]),
    )


def is_news(registered: EngineMetadata | None, current: EngineMetadata) -> bool:
    """Whether an engine must be registered again: something differs, a power limit by enough."""
    if registered is None:
        return True
    before, now = registered.gpu_power_limit_w, current.gpu_power_limit_w
    if before is not None and now is not None:
        least_w = max(_LEAST_CHANGE_W, _LEAST_CHANGE_FRACTION * before)
        if abs(now - before) < least_w:
            current = replace(current, gpu_power_limit_w=before)
    return current != registered


def _devices(survey: GpuSurvey) -> list[EngineGpu]:
    """Return what programs see: NVIDIA's cards, or else AMD's; MIG slices in a card's place."""
    vendor = "nvidia" if any(card.vendor == "nvidia" for card in survey.cards) else "amd"
    devices: list[EngineGpu] = []
    for card in survey.cards:
        if card.vendor != vendor:
            continue
        devices += [EngineGpu(card, mig) for mig in card.mig_devices] or [EngineGpu(card)]
    return devices


def _visible(env: Mapping[str, str]) -> tuple[int | str, ...] | None:
    """Return what a process with this environment sees; None = everything.

    CUDA ends the list at the first entry that it cannot read: "-1" hides all.
    """
    for name in VISIBLE_DEVICES:
        if name not in env:
            continue
        items: list[int | str] = []
        for item in env[name].split(","):
            text = item.strip()
            if not (text.isascii() and text.isdecimal()) and not text.startswith(("GPU-", "MIG-")):
                break
            items.append(int(text) if text.isdecimal() else text)
        return tuple(items)
    return None


def _find(devices: Sequence[EngineGpu], asked: int | str) -> EngineGpu | None:
    """Return a device by its card's index, or by the beginning of its UUID, as CUDA reads them."""
    for gpu in devices:
        if isinstance(asked, int):
            if gpu.card.index == asked:
                return gpu
            continue
        for uuid in (gpu.mig.uuid if gpu.mig is not None else None, gpu.card.uuid):
            if uuid is not None and uuid.casefold().startswith(asked.casefold()):
                return gpu
    return None


def _is_numbered_alike(devices: Sequence[EngineGpu], env: Mapping[str, str]) -> bool:
    """Whether CUDA counts the cards as the driver does; by default it puts the fastest first."""
    kinds = {gpu.card.name for gpu in devices}
    return env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len(kinds) == 1


def _limit_w(gpu: EngineGpu, table: GpuTable) -> float | None:
    row, _, _ = find_gpu(table, gpu.name or "")
    return power_limit(gpu.card, row.power_default_w if row else None).watts


def _least(values: Sequence[_Ordered | None]) -> _Ordered | None:
    known = [value for value in values if value is not None]
    return min(known) if len(known) == len(values) else None
