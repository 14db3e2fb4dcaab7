"""What an engine can do: prefill and decode tokens per second, and one relative power from both.

Two numbers per engine, never one, because they follow different things: prefill is bound by
compute, decode by memory bandwidth, and a power cap takes much of the first and little of the
second. How they blend depends on what callers send, which the policy says per model.

All formulas are rooflines of transformer inference for one fixed model (8 billion parameters in
16 bits). Only ratios between engines are used, so the model cancels out where it is not memory
that limits.
"""

import math
import re
from dataclasses import dataclass, replace

from engines.gpu import REFERENCE_GPU, REFERENCE_POWER, GpuSpec, GpuTable

_PARAMETERS = 8e9
_WEIGHT_BYTES = 2 * _PARAMETERS
_COMPUTE_USE = 0.5  # of the dense peak; what prefill kernels reach in practice
_BANDWIDTH_USE = 0.7  # of the peak; what decode kernels reach in practice
# Sequences that share one reading of the weights on a busy engine. At this batch a step takes about
# twice as long as for one sequence (the KV cache is read too), so the engine makes half of it each.
_BATCH = 64
_BATCH_SLOWDOWN = 2.0
# Measured with the cap lowered from 350 to 200 W: prefill lost 40 %, decode 6 %. As exponents of
# the cap's ratio: ln(0.60)/ln(200/350) and ln(0.94)/ln(200/350).
_PREFILL_CAP_EXPONENT = 0.91
_DECODE_CAP_EXPONENT = 0.11
_DOUBLING_EFFICIENCY = 0.92  # of twice the GPUs under tensor parallelism; the rest is all-reduce
_MIG_COMPUTE_SLICES = 7
_LEAST_POWER = 0.1  # of the smallest slice under the lowest cap: little, but never nothing
# "MIG 3g.40gb"; of a compute instance within it "MIG 1c.3g.40gb": one of its three slices.
_MIG = re.compile(r"\s+MIG\s+(?:(\d)c\.)?(\d)g\.(\d+)gb.*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Mix:
    """What callers of a model send, as a ratio of prompt tokens to output tokens."""

    prompt: float = 4.0
    output: float = 1.0


DEFAULT_MIX = Mix()  # chat: a few hundred prompt tokens to a hundred of output


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What is known of an engine's GPUs. None = unknown, and then it limits nothing."""

    spec: GpuSpec
    count: int = 1
    compute_share: float = 1.0  # of one card: below 1 for a MIG slice
    memory_share: float = 1.0
    power_limit_w: float | None = None
    power_default_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What an engine can do. Tokens per second of the fixed model."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float  # of all sequences of a busy batch together
    parallel_efficiency: float  # 0-1
    prefill_cap_factor: float  # 0-1; 1 = no cap, or none known
    decode_cap_factor: float

    def requests_per_s(self, mix: Mix) -> float:
        """Return the rate of requests of `mix.prompt` prompt and `mix.output` output tokens.

        A request holds the engine for its prefill and for its share of the decode steps.
        """
        prefill_s = mix.prompt / self.prefill_tokens_per_s
        decode_s = mix.output / self.decode_tokens_per_s
        return 1.0 / (prefill_s + decode_s)

    def token_gap_s(self, running: float, prompt_tokens_per_step: float) -> float:
        """Return the time between two tokens of a sequence, among `running` of them.

        A step reads the weights once for all sequences and a little more for each; prompts that
        arrive meanwhile are prefilled between the steps.
        """
        alone_s = _BATCH / _BATCH_SLOWDOWN / self.decode_tokens_per_s
        step_s = alone_s * (1 + max(0.0, running - 1) / _BATCH)
        return step_s + prompt_tokens_per_step / self.prefill_tokens_per_s

    def scaled(self, factor: float) -> "Capacity":
        """Return a capacity that is so many times as fast in both."""
        return replace(
            self,
            prefill_tokens_per_s=self.prefill_tokens_per_s * factor,
            decode_tokens_per_s=self.decode_tokens_per_s * factor,
        )


def find_gpu(gpus: GpuTable, raw_name: str) -> tuple[GpuSpec | None, float, float]:
    """Return a card by its driver's name, and the shares of compute and memory of a MIG slice.

    "NVIDIA A100-SXM4-80GB MIG 3g.40gb" has three of seven compute slices and half of the memory,
    and with the memory half of its bandwidth.
    """
    match = _MIG.search(raw_name)
    if match is None:
        return gpus.find(raw_name), 1.0, 1.0
    spec = gpus.find(raw_name[: match.start()])
    if spec is None:
        return None, 1.0, 1.0
    compute = min(1.0, int(match[1] or match[2]) / _MIG_COMPUTE_SLICES)
    memory = min(1.0, max(1, int(match[3])) / spec.memory_gib)
    return spec, max(compute, 1 / _MIG_COMPUTE_SLICES), memory


def engine_capacity(facts: GpuFacts) -> Capacity:
    """Return the capacity of an engine on these GPUs."""
    efficiency = parallel_efficiency(facts.count)
    ratio = _cap_ratio(facts)
    prefill_cap, decode_cap = ratio**_PREFILL_CAP_EXPONENT, ratio**_DECODE_CAP_EXPONENT
    scale = facts.count * efficiency
    flops_per_s = facts.spec.bf16_tflops * 1e12 * _COMPUTE_USE * facts.compute_share * scale
    bytes_per_s = facts.spec.bandwidth_gb_s * 1e9 * _BANDWIDTH_USE * facts.memory_share * scale
    return Capacity(
        prefill_tokens_per_s=flops_per_s / (2 * _PARAMETERS) * prefill_cap,
        decode_tokens_per_s=bytes_per_s / _WEIGHT_BYTES * (_BATCH / _BATCH_SLOWDOWN) * decode_cap,
        parallel_efficiency=efficiency,
        prefill_cap_factor=prefill_cap,
        decode_cap_factor=decode_cap,
    )


def parallel_efficiency(count: int) -> float:
    """Return what is left of `count` GPUs' sum under tensor parallelism, 0-1."""
    return float(_DOUBLING_EFFICIENCY ** math.log2(max(1, count)))


def reference_capacity(gpus: GpuTable) -> Capacity:
    """Return the capacity of the card whose gpu_power is 100, whatever the mix."""
    return engine_capacity(GpuFacts(spec=gpus.named(REFERENCE_GPU)))


def relative_power(capacity: Capacity, mix: Mix, reference: Capacity) -> float:
    """Return gpu_power: the rate of requests of this mix, where one A100-80GB serves 100."""
    ratio = capacity.requests_per_s(mix) / reference.requests_per_s(mix)
    return max(_LEAST_POWER, round(REFERENCE_POWER * ratio, 1))


def _cap_ratio(facts: GpuFacts) -> float:
    """Return how much of its default power a card may draw, 0-1; 1 where either is unknown."""
    if facts.power_limit_w is None:
        return 1.0
    default_w = facts.power_default_w or facts.spec.power_default_w
    return min(1.0, facts.power_limit_w / default_w)
