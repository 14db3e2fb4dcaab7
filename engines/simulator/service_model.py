"""How fast a simulated engine serves: pure arithmetic over a GPU's numbers.

The model served is taken to be of 8 billion parameters in 16 bits. Prefill is bound by compute:
2 FLOPs per parameter and token at half of the dense peak. A step reads all weights once, whatever
the batch (bound by memory bandwidth), and a little more for every sequence in it (its KV cache), so
that a full batch takes about twice the time of a single sequence. Both are the usual roofline
estimates of transformer inference.
"""

from dataclasses import dataclass

from engines.gpu import REFERENCE_GPU, REFERENCE_POWER, GpuSpec, GpuTable

_PARAMETERS = 8e9
_WEIGHT_BYTES = 2 * _PARAMETERS
_COMPUTE_USE = 0.5  # of the dense peak; what prefill kernels reach in practice
_BATCH_DOUBLES_AT = 64  # sequences at which a decode step takes twice as long as for one
_KV_BYTES_PER_TOKEN = 131_072  # 32 layers x 8 KV heads x 128 x 2 (K and V) x 2 bytes
_MEMORY_USE = 0.9  # vLLM's gpu_memory_utilization
_CHARS_PER_TOKEN = 4
# Tokens of a step by memory in GiB, largest first; vLLM's defaults for its API server. An A100 of
# any size has the last (vllm/engine/arg_utils.py, get_batch_defaults).
_BATCHED_TOKENS = ((160.0, 16_384), (70.0, 8192), (0.0, 2048))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceModel:
    """Speed and room of one engine."""

    prefill_tokens_per_s: float
    step_s: float  # one decode step of a single sequence
    kv_cache_tokens: int
    max_num_batched_tokens: int  # vLLM's default on this card
    speedup: float = 1.0

    def step_time_s(self, prompt_tokens: int, sequences: int) -> float:
        """Return the seconds of a step over so many tokens of prompts and so many sequences."""
        prefill_s = prompt_tokens / self.prefill_tokens_per_s
        weights_s = self.step_s * (1 + max(0, sequences - 1) / _BATCH_DOUBLES_AT)
        return (prefill_s + weights_s) / self.speedup


def service_model(
    gpus: GpuTable, *, gpu: str | None, gpu_power: float | None, speedup: float
) -> ServiceModel:
    """Return the model of a GPU; an explicit gpu_power scales the reference card instead.

    A GPU that the table does not know is served as the reference card.
    """
    reference = gpus.named(REFERENCE_GPU)
    known = gpus.find(gpu) if gpu else None
    spec = known or reference
    scale = 1.0
    if gpu_power is not None:
        spec, scale = reference, gpu_power / REFERENCE_POWER
    flops_per_s = spec.bf16_tflops * 1e12 * _COMPUTE_USE * scale
    free_bytes = max(1e9, spec.memory_gib * 2**30 * _MEMORY_USE - _WEIGHT_BYTES)
    return ServiceModel(
        prefill_tokens_per_s=flops_per_s / (2 * _PARAMETERS),
        step_s=_WEIGHT_BYTES / (spec.bandwidth_gb_s * 1e9 * scale),
        kv_cache_tokens=int(free_bytes / _KV_BYTES_PER_TOKEN),
        max_num_batched_tokens=_batched_tokens(spec),
        speedup=speedup,
    )


def _batched_tokens(spec: GpuSpec) -> int:
    if spec.name.startswith("A100"):
        return _BATCHED_TOKENS[-1][1]
    return next(tokens for least_gib, tokens in _BATCHED_TOKENS if spec.memory_gib >= least_gib)


def count_tokens(text: str) -> int:
    """Return about how many tokens a text has: one per four characters, at least one."""
    return max(1, -(-len(text) // _CHARS_PER_TOKEN))
