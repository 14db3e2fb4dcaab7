"""Whether a host's cards can run what node.yaml asks of them, before vLLM is started.

vLLM would find out by itself, after a minute and in the midst of a stack trace, and be started
again for ever. Refused is only what is known to fail; what is not known passes, with a warning.
What node.yaml says of a card wins over what its driver says, here too.
The floors are those of vLLM 0.32: `platforms/cuda.py` and `supports_compute_capability` of its
attention backends.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from engines.compute_capability import (
    ComputeCapability,
    parse_compute_capability,
    show_compute_capability,
)
from engines.gpu_assignment import Assignment, EngineGpu
from engines.node_config import EngineSpec
from engines.vllm_args import find_argument, find_count, flag_of

LEAST = (7, 0)  # Pascal and older: no release of vLLM has kernels for them
_LEAST_OF_CUDA_13 = (7, 5)  # its wheels leave out Volta; those for CUDA 12 have it
_BFLOAT16 = (8, 0)
# What a backend needs at least. FlashInfer begins at 7.5, though some releases of vLLM say 8.0.
_BACKENDS: Mapping[str, ComputeCapability] = MappingProxyType(
    {
        "FLASH_ATTN": (8, 0),
        "FLASHINFER": (7, 5),
        "FLASH_ATTN_MLA": (9, 0),
        "FLASHMLA": (9, 0),
        "CUTLASS_MLA": (10, 0),
    }
)
# vLLM's gpu_memory_utilization since 0.32; before it was 0.9, and the larger one refuses less.
_MEMORY_USE = 0.92
_GIB_MIB = 1024
_BYTES_PER_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What stands against a start, and what could not be checked."""

    refusal: str | None = None
    warnings: tuple[str, ...] = ()


def preflight(
    spec: EngineSpec, env: Mapping[str, str], assignment: Assignment, weights_bytes: int | None
) -> Verdict:
    """Return whether vLLM may start on these devices.

    `weights_bytes` are the files of a local model; None = it is not local, or has none.
    """
    refusals = list(_absent(assignment))
    warnings: list[str] = []
    if not assignment.gpus and not refusals:
        warnings.append("which cards it uses is not known, so they were not checked")
    for gpu in assignment.gpus:
        refusals += _lost(gpu)
        refusals += _capability(spec, env, gpu)
        warnings += _capability_warnings(spec, gpu)
    found, unchecked = _memory(spec, assignment.gpus, weights_bytes)
    refusals += found
    warnings += unchecked
    return Verdict(refusal="; ".join(refusals) or None, warnings=tuple(warnings))


def _absent(assignment: Assignment) -> Iterator[str]:
    if assignment.missing:
        asked = ", ".join(str(item) for item in assignment.missing)
        yield (
            f"gpus: {asked} is not on this host, whose driver shows {assignment.present} devices; "
            "name cards that `wattmesh gpu` lists"
        )


def _lost(gpu: EngineGpu) -> Iterator[str]:
    if gpu.card.lost is not None:
        yield f"{gpu} is lost ({gpu.card.lost}); reset it, or start the host again"


def _capability(spec: EngineSpec, env: Mapping[str, str], gpu: EngineGpu) -> Iterator[str]:
    found = _compute_capability(spec, gpu)
    if found is None:
        return
    for least, who, remedy in _floors(spec, env):
        if found < least:
            yield (
                f"{gpu} has compute capability {show_compute_capability(found)}, and {who} needs "
                f"at least {show_compute_capability(least)}; {remedy}"
            )
            return  # the lowest floor says it; the others would repeat it


def _floors(
    spec: EngineSpec, env: Mapping[str, str]
) -> Iterator[tuple[ComputeCapability, str, str]]:
    """Yield what is needed, by whom, and what helps; the lowest that anything needs first."""
    yield LEAST, "vLLM", "use a newer card, or give the engine others with gpus"
    if (find_argument(spec.args, "--dtype") or "").lower() in ("bfloat16", "bf16"):
        yield _BFLOAT16, "dtype bfloat16", 'use args: [--dtype, half], or "auto"'
    backend = find_argument(
        spec.args, "--attention-backend", "--attention-config.backend", "-ac.backend"
    )
    name = (backend or env.get("VLLM_ATTENTION_BACKEND", "")).upper()
    if name in _BACKENDS:
        yield _BACKENDS[name], f"attention backend {name}", "use TRITON_ATTN, or leave it to vLLM"


def _compute_capability(spec: EngineSpec, gpu: EngineGpu) -> ComputeCapability | None:
    """Return what node.yaml says, else what the driver says."""
    return parse_compute_capability(spec.gpu_compute_capability) or gpu.card.compute_capability


def _capability_warnings(spec: EngineSpec, gpu: EngineGpu) -> Iterator[str]:
    found = _compute_capability(spec, gpu)
    if found is None and gpu.card.vendor == "nvidia":
        yield f"{gpu}: its compute capability is unknown, so it was not checked"
    elif found is not None and LEAST <= found < _LEAST_OF_CUDA_13:
        yield (
            f"{gpu} has compute capability {show_compute_capability(found)}: vLLM's builds for "
            f"CUDA 13 need {show_compute_capability(_LEAST_OF_CUDA_13)}, those for CUDA 12 do not"
        )


def _memory(
    spec: EngineSpec, gpus: Sequence[EngineGpu], weights_bytes: int | None
) -> tuple[list[str], list[str]]:
    """Return refusals and warnings about the room for the weights."""
    if weights_bytes is None or not gpus or _weights_change(spec):
        return [], []
    use = _fraction(find_argument(spec.args, "--gpu-memory-utilization"))
    offloaded_mib = _number(find_argument(spec.args, "--cpu-offload-gb")) * _GIB_MIB
    need_mib = weights_bytes / _BYTES_PER_MIB / _shards(spec) - offloaded_mib
    refusals, warnings = [], []
    for gpu in gpus:
        memory_mib = spec.gpu_memory_mib or gpu.memory_mib
        if memory_mib is None:
            warnings.append(f"{gpu}: its memory is unknown, so the weights' room was not checked")
        elif need_mib > memory_mib * use:
            refusals.append(
                f"{gpu} has {memory_mib} MiB, of which vLLM takes {use:g}, and the weights "
                f"alone need {need_mib:.0f} MiB of each card; use a larger tensor_parallel_size, "
                "a smaller or quantized model, or a card with more memory"
            )
    return refusals, warnings


def _weights_change(spec: EngineSpec) -> bool:
    """Whether vLLM makes other weights of the files, so that their size says nothing."""
    flags = {flag_of(argument) for argument in spec.args}
    return bool(flags & {"--quantization", "-q", "--load-format", "--hf-overrides"})


def _shards(spec: EngineSpec) -> int:
    """Return over how many cards the weights are spread: data parallel ranks hold copies."""
    flags = {flag_of(argument) for argument in spec.args}
    if "--enable-expert-parallel" in flags or "-ep" in flags:
        return spec.ranks  # experts are spread over data parallel ranks too
    return spec.ranks // find_count(spec.args, "--data-parallel-size", "-dp")


def _fraction(value: str | None) -> float:
    number = _number(value)
    return number if 0 < number <= 1 else _MEMORY_USE


def _number(value: str | None) -> float:
    try:
        return max(0.0, float(value or 0))
    except ValueError:
        return 0.0
