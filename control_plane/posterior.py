"""What engines were measured to do, against what they were declared to do.

The measure is the time between two tokens of a sequence. The capacity model says what it should be
for the load that the engine carried; expected over measured is the engine's ratio. It holds at any
load that keeps the engine busy, so that weak engines which are overrun and strong ones which are
not are measured alike; throughput alone would only say how much each was sent.

How large the served model is, and how good its kernels are, scales all engines of a pool alike.
That scale is the pool's upper median ratio: cards are slower than declared (hot, capped, shared)
more often than faster. What is left of an engine's ratio is its own.

All arithmetic is on logarithms of ratios. Nothing here reads a clock.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from control_plane.capacity import Capacity
from control_plane.fleet import Engine, PowerSource
from control_plane.observations import Observation
from engines.gpu import REFERENCE_POWER

MIN_WINDOW_S = 0.5
MIN_GAPS = 100  # tokens; fewer say little about a mean
MIN_RUNNING = 1.0  # sequences on average: below, the engine was idle part of the time
MIN_SAMPLES = 2  # before anything is corrected
LEAST_FACTOR, LARGEST_FACTOR = 0.01, 100.0  # of any correction, whatever the policy says
_MAX_RATIO = 1e12  # of expected over measured; beyond is no measurement
_MEMORY = 12  # samples after which the past counts no more than the present: a minute at 5 s
# How far a declaration is usually off, and how noisy a sample is, as standard deviations of the
# logarithm. Together they say how much of a measured deviation is believed after n samples.
_PRIOR_SPREAD = 0.35
_SAMPLE_SPREAD = 0.15
_MAX_STEP = math.log(1.5)  # of a correction per sample
_DEAD_BAND = math.log(1.08)  # a correction in force moves only by more than this


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement of one engine."""

    log_ratio: float  # ln(expected / measured) time between tokens; above 0: faster than declared
    running: float  # sequences on average


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """What is believed of one engine."""

    fingerprint: str  # what the declaration was; another one starts over
    log_ratio: float = 0.0  # mean of the samples, the recent ones more
    samples: int = 0
    target: float = 0.0  # ln of the correction that the samples ask for
    correction: float = 0.0  # ln of the correction in force
    reason: str = "not measured yet"  # of the last round

    @property
    def factor(self) -> float:
        """What the declared capacity is multiplied by."""
        return math.exp(self.correction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The least and the largest factor that a correction may have."""

    lowest: float = 0.1
    highest: float = 2.0


def declared_capacity(engine: Engine, gpu_power: float, reference: Capacity) -> Capacity:
    """Return what an engine should do: of the table's card, or so much of the reference card."""
    if engine.power_source is PowerSource.TABLE and engine.capacity is not None:
        return engine.capacity
    return reference.scaled(gpu_power / REFERENCE_POWER)


def measure(before: Observation, after: Observation, declared: Capacity) -> Sample | str:
    """Return a sample of the time between two scrapes, or why there is none."""
    window_s = after.at_s - before.at_s
    if window_s < MIN_WINDOW_S:
        return "the scrapes are too close"
    tokens = _increase(before.generation_tokens, after.generation_tokens)
    if tokens is None:
        return "generation tokens are not told, or started over"
    gaps = _told_gaps(before, after, window_s) or _gaps_of_a_full_batch(
        before, after, window_s, tokens
    )
    if gaps is None:
        return "idle, or the time between tokens is not told"
    gap_s, running = gaps
    if running < MIN_RUNNING:
        return "idle: less than one sequence on average"
    prompts = _increase(before.prompt_tokens, after.prompt_tokens) or 0.0
    expected_s = declared.token_gap_s(running, prompts * running / tokens if tokens else 0.0)
    ratio = expected_s / gap_s
    if not 1 / _MAX_RATIO < ratio < _MAX_RATIO:
        return "its metrics contradict themselves"
    return Sample(log_ratio=math.log(ratio), running=running)


def learn(state: Posterior | None, fingerprint: str, outcome: Sample | str) -> Posterior:
    """Return the belief after one more sample, or after none and why.

    An engine whose declaration changed is another engine: what was learnt of it is forgotten.
    """
    if state is None or state.fingerprint != fingerprint:
        state = Posterior(fingerprint=fingerprint)
    if isinstance(outcome, str):
        return replace(state, reason=outcome)
    samples = min(state.samples + 1, _MEMORY)
    step = (outcome.log_ratio - state.log_ratio) / samples
    reason = f"measured with {outcome.running:.1f} sequences on average"
    return replace(state, log_ratio=state.log_ratio + step, samples=samples, reason=reason)


def correct(pool: Mapping[str, Posterior], bounds: Bounds) -> dict[str, Posterior]:
    """Return the beliefs of a pool's engines, by engine, with the corrections that follow.

    One measured engine alone cannot be told from its pool's scale: nothing is corrected then.
    """
    ratios = sorted(state.log_ratio for state in pool.values() if state.samples >= MIN_SAMPLES)
    if len(ratios) < 2:
        return dict(pool)
    scale = ratios[len(ratios) // 2]
    return {engine: _correct(state, scale, bounds) for engine, state in pool.items()}


def _correct(state: Posterior, scale: float, bounds: Bounds) -> Posterior:
    if state.samples < MIN_SAMPLES:
        return state
    doubt = (_SAMPLE_SPREAD / _PRIOR_SPREAD) ** 2
    believed = (state.log_ratio - scale) * state.samples / (state.samples + doubt)
    target = min(max(believed, math.log(bounds.lowest)), math.log(bounds.highest))
    step = target - state.correction
    if abs(step) <= _DEAD_BAND:
        return replace(state, target=target)
    step = min(max(step, -_MAX_STEP), _MAX_STEP)
    return replace(state, target=target, correction=state.correction + step)


def _told_gaps(
    before: Observation, after: Observation, window_s: float
) -> tuple[float, float] | None:
    """Return the mean time between tokens and the mean batch, from the engine's own histogram.

    The sum of all gaps over the window is the number of sequences that were in the batch on
    average (Little's law), with no need to catch the gauge at the right moment.
    """
    gaps = _increase(before.token_gaps, after.token_gaps)
    total_s = _increase(before.token_gaps_s, after.token_gaps_s)
    if gaps is None or not total_s or gaps < MIN_GAPS:
        return None
    return total_s / gaps, total_s / window_s


def _gaps_of_a_full_batch(
    before: Observation, after: Observation, window_s: float, tokens: float
) -> tuple[float, float] | None:
    """Return the same from throughput, which tells it only while more wait than fit the batch."""
    if not (before.waiting and after.waiting and before.running and after.running):
        return None
    if tokens < MIN_GAPS:
        return None
    running = (before.running + after.running) / 2
    return running * window_s / tokens, running


def _increase(before: float | None, after: float | None) -> float | None:
    """Return how much a counter grew; None when it is unknown or the engine started over."""
    if before is None or after is None or after < before:
        return None
    return after - before
