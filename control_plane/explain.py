"""Every step of the arithmetic from an engine's metadata to its weight, with units.

Nothing is computed anew: the steps show the values that the plan holds, and the rule that each
follows from.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from control_plane.capacity import GpuFacts, Mix, relative_power
from control_plane.fleet import Engine, Fleet, PowerSource
from control_plane.plan import EnginePlan, ModelPlan, Plan
from control_plane.plan_view import engine_shares
from control_plane.policy import Policy
from control_plane.posterior import Posterior
from control_plane.weights import ACTIVE_REQUEST_BIASES, EXPONENTS, weight_scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One value and how it comes about."""

    what: str
    value: str  # with its unit
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All steps of one engine, in order."""

    engine: str  # its ID
    model: str
    steps: tuple[Step, ...]


NOT_MEASURED: Mapping[str, Posterior] = MappingProxyType({})


def explain(
    fleet: Fleet,
    policy: Policy,
    plan: Plan,
    subject: str,
    posteriors: Mapping[str, Posterior] = NOT_MEASURED,
) -> tuple[Explanation, ...]:
    """Return the explanations of a model's engines, or of one engine; none for an unknown name.

    `posteriors` are what a running control plane measured, by engine ID.
    """
    engines = {engine.id: engine for node in fleet.nodes for engine in node.engines}
    models = {model.model: model for model in plan.models}
    shares = engine_shares(plan)
    return tuple(
        Explanation(
            engine=planned.id,
            model=planned.pool.model,
            steps=tuple(
                _steps(
                    engine=engines[planned.id],
                    planned=planned,
                    model=models[planned.pool.model],
                    mix=policy.model(planned.pool.model).mix,
                    fleet=fleet,
                    plan=plan,
                    share=shares.get(planned.id, 0.0),
                    posterior=posteriors.get(planned.id),
                )
            ),
        )
        for planned in plan.engines
        if subject in (planned.id, planned.pool.model)
    )


def _steps(
    *,
    engine: Engine,
    planned: EnginePlan,
    model: ModelPlan,
    mix: Mix,
    fleet: Fleet,
    plan: Plan,
    share: float,
    posterior: Posterior | None,
) -> Iterator[Step]:
    yield from _gpu_steps(engine)
    yield from _power_steps(engine, planned, mix, fleet)
    yield from _capacity_steps(planned, posterior)
    yield from _weight_steps(planned, model, plan)
    yield Step(what="share", value=f"{share:.1%}", how="of the model's traffic at full load")
    batch = "unknown, so vLLM's default" if engine.max_num_seqs is None else engine.max_num_seqs
    yield Step(
        what="max_connections",
        value=f"{planned.max_connections} requests",
        how=f"max_num_seqs ({batch}) and a queue of an eighth of it, at least 2",
    )


def _gpu_steps(engine: Engine) -> Iterator[Step]:
    facts, capacity = engine.facts, engine.capacity
    if facts is None or capacity is None:
        name = engine.gpu or "unknown"
        yield Step(what="GPU", value=name, how="not in the GPU table: its numbers are unknown")
        return
    yield Step(what="GPU", value=f"{facts.count} x {facts.spec.name}", how=facts.spec.source)
    if facts.compute_share < 1 or facts.memory_share < 1:
        yield Step(
            what="MIG slice",
            value=f"{facts.compute_share:.3f} of compute, {facts.memory_share:.3f} of memory",
            how="its slices of the card, and with the memory its bandwidth",
        )
    yield _cap_step(facts, capacity.prefill_cap_factor, capacity.decode_cap_factor)
    if facts.count > 1:
        yield Step(
            what="parallel efficiency",
            value=f"{capacity.parallel_efficiency:.3f}",
            how="0.92 for each doubling of the GPUs",
        )
    yield Step(
        what="prefill",
        value=f"{capacity.prefill_tokens_per_s:.0f} tokens/s",
        how=f"{facts.spec.bf16_tflops:g} TFLOP/s x 0.5 / (2 x 8e9 FLOP a token), with the above",
    )
    yield Step(
        what="decode",
        value=f"{capacity.decode_tokens_per_s:.0f} tokens/s",
        how=f"{facts.spec.bandwidth_gb_s:g} GB/s x 0.7 / 16 GB x 32 sequences, with the above",
    )


def _cap_step(facts: GpuFacts, prefill: float, decode: float) -> Step:
    if facts.power_limit_w is None:
        return Step(what="power cap", value="unknown", how="counts as none")
    default_w = facts.power_default_w or facts.spec.power_default_w
    return Step(
        what="power cap",
        value=f"{facts.power_limit_w:g} of {default_w:g} W",
        how=f"prefill x {prefill:.3f} (ratio^0.91), decode x {decode:.3f} (ratio^0.11)",
    )


def _power_steps(engine: Engine, planned: EnginePlan, mix: Mix, fleet: Fleet) -> Iterator[Step]:
    how = {
        PowerSource.METADATA: "declared in the engine's metadata, which wins over the table",
        PowerSource.DEFAULT: "nothing is known: the documented default",
        PowerSource.TABLE: (
            f"requests of {mix.prompt:g} prompt and {mix.output:g} output tokens a second, "
            "relative to an A100-80GB = 100"
        ),
    }[engine.power_source]
    yield Step(what="gpu_power", value=f"{planned.gpu_power:g}", how=how)
    if engine.power_source is PowerSource.METADATA and engine.capacity and fleet.reference:
        table = relative_power(engine.capacity, mix, fleet.reference)
        yield Step(what="the table says", value=f"{table:g}", how="for comparison; not used")


def _capacity_steps(planned: EnginePlan, posterior: Posterior | None) -> Iterator[Step]:
    if posterior is not None:
        yield Step(what="measured", value=f"{posterior.samples} samples", how=posterior.reason)
    if posterior is not None and posterior.samples:
        yield Step(
            what="posterior",
            value=f"x {math.exp(posterior.target):.3f}",
            how="of what was declared, relative to the pool's median engine, after damping and "
            f"within the policy's bounds; in force: x {posterior.factor:.3f}",
        )
    corrected = planned.capacity != planned.gpu_power
    yield Step(
        what="capacity",
        value=f"{planned.capacity:g}",
        how="gpu_power corrected by measurement" if corrected else "gpu_power; not corrected",
    )


def _weight_steps(planned: EnginePlan, model: ModelPlan, plan: Plan) -> Iterator[Step]:
    if not planned.weight:
        how = f"the engine is {planned.state.value}: only ready ones get new requests"
        yield Step(what="weight", value="none", how=how)
        return
    peers = [
        [engine.capacity for engine in node.engines if engine.pool == planned.pool]
        for node in plan.nodes
    ]
    scale = weight_scale([[capacity] for node in peers for capacity in node], model.balance)
    bias = ACTIVE_REQUEST_BIASES[model.balance]
    yield Step(
        what="weight",
        value=str(planned.weight),
        how=f"balance {model.balance}: (capacity x {scale.factor:.4g})^"
        f"{EXPONENTS[model.balance]:g}, active_request_bias {bias:g}",
    )
    pool = next(pool for pool in plan.pools if pool.pool == planned.pool)
    endpoint = next(item for item in pool.endpoints if item.node == planned.node)
    total = sum(item.weight for item in pool.endpoints)
    yield Step(
        what="node's weight at the edge",
        value=f"{endpoint.weight} of {total}",
        how="the same rule over the summed capacity of the node's live engines of the pool",
    )
