"""policy.yaml as typed values: strict, and every error of the document at once.

pydantic reads it because it reports all errors in one pass with path and value; the result is
turned into frozen values that the core works with. An unknown field is an error.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from control_plane.capacity import DEFAULT_MIX, Mix
from control_plane.documents import Duration, Name, Size, load_document
from control_plane.errors import InputError, Problem, shown
from control_plane.limits import RequestLimit, parse_rate
from control_plane.metadata import name_fault
from control_plane.posterior import LARGEST_FACTOR, LEAST_FACTOR, Bounds
from control_plane.thresholds import DEFAULT_MAX_QUEUE
from engines.compute_capability import ComputeCapability, parse_compute_capability

_MEANWHILE = "the last good policy stays in force"

# latency: the busy and the strong are told apart, for the least waiting; the default.
# proportional: the share of an engine follows its capacity, however busy it is.
Balance = Literal["latency", "proportional"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What an engine's GPU must be to serve a model."""

    gpu_models: tuple[str, ...] = ()  # names of the GPU table or of the driver; none = any
    min_compute_capability: ComputeCapability | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Whether declared capacities are corrected by what engines are measured to do, and how far."""

    enabled: bool | None = None  # None: under `latency` only
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPolicy:
    """What the operator wants for one model. Durations in seconds, sizes in bytes."""

    versions: Mapping[str, int] | None = None  # route weights; None = follow capacity
    balance: Balance = "latency"
    mix: Mix = DEFAULT_MIX  # prompt tokens to output tokens of what callers send
    generation_timeout_s: float = 600.0  # longest silence on a stream before it is cut
    max_queue: float = DEFAULT_MAX_QUEUE  # requests that may wait for each that engines hold
    slow_start_s: float = 30.0  # until a new engine gets its whole share; 0 = at once
    requires: Requirements = Requirements()
    correction: Correction = field(default_factory=Correction)
    request_limit: RequestLimit | None = None  # of this model, over all edges; None = none

    @property
    def corrects(self) -> bool:
        """Whether measurement corrects what is declared.

        Under `proportional` the share is what was declared, unless correction is asked for.
        """
        enabled = self.correction.enabled
        return self.balance == "latency" if enabled is None else enabled


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The whole policy. `defaults` holds for every model that `models` does not name."""

    defaults: ModelPolicy = field(default_factory=ModelPolicy)
    models: Mapping[str, ModelPolicy] = field(default_factory=lambda: MappingProxyType({}))
    max_request_bytes: int = 32 * 1024 * 1024  # larger bodies get a 413
    retry_after_s: int = 2  # told to callers with every 503 of ours
    request_limit: RequestLimit | None = None  # of all models together, over all edges

    def model(self, name: str) -> ModelPolicy:
        """Return the policy in force for a model."""
        return self.models.get(name, self.defaults)


def parse_policy(data: bytes, *, source: str) -> Policy:
    """Return the policy of a YAML document. Raise InputError with every problem in it."""
    document = load_document(data, _PolicyDocument, source=source, meanwhile=_MEANWHILE)
    problems = [*_name_problems(document, source), *_split_problems(document, source)]
    if problems:
        raise InputError(problems)
    defaults = _model_policy(document.defaults, ModelPolicy())
    models = {name: _model_policy(raw, defaults) for name, raw in document.models.items()}
    return Policy(
        defaults=defaults,
        models=MappingProxyType(dict(sorted(models.items()))),
        max_request_bytes=document.max_request_size,
        request_limit=_request_limit(document.request_limit),
        # Retry-After is in whole seconds; rounding down would invite callers too early.
        retry_after_s=math.ceil(document.retry_after),
    )


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _MixDocument(_Strict):
    """A mapping, since YAML reads an unquoted 4:1 as 241."""

    prompt: Annotated[float, Field(ge=0.001, le=1e9, allow_inf_nan=False)]
    output: Annotated[float, Field(ge=0.001, le=1e9, allow_inf_nan=False)]


def _read_compute_capability(value: object) -> ComputeCapability:
    found = parse_compute_capability(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('a compute capability in quotes, such as "8.0"')
    return found


class _RequirementsDocument(_Strict):
    gpu_models: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = (
        None
    )
    min_compute_capability: (
        Annotated[ComputeCapability, BeforeValidator(_read_compute_capability)] | None
    ) = None


class _CorrectionDocument(_Strict):
    enabled: bool | None = None
    lowest: Annotated[float, Field(ge=LEAST_FACTOR, le=1)] = Bounds().lowest
    highest: Annotated[float, Field(ge=1, le=LARGEST_FACTOR)] = Bounds().highest


Rate = Annotated[Fraction, BeforeValidator(parse_rate)]


class _LimitDocument(_Strict):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    rate: Rate | None = None
    rate_per_a100: Rate | None = None
    burst: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if (self.rate is None) == (self.rate_per_a100 is None):
            raise ValueError("either rate or rate_per_a100")
        return self


class _Defaults(_Strict):
    balance: Balance | None = None
    prompt_output_mix: _MixDocument | None = None
    generation_timeout: Annotated[Duration, Field(ge=1, le=86_400)] | None = None
    max_queue: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] | None = None
    slow_start: Annotated[Duration, Field(ge=0, le=3600)] | None = None
    requires: _RequirementsDocument | None = None
    request_limit: _LimitDocument | None = None
    correction: _CorrectionDocument | None = None


class _Model(_Defaults):
    versions: dict[Name, Annotated[int, Field(ge=0, le=1_000_000)]] | None = None


class _PolicyDocument(_Strict):
    defaults: _Defaults = _Defaults()
    models: dict[str, _Model] = {}
    max_request_size: Annotated[Size, Field(ge=64 * 1024, le=1024**3)] = 32 * 1024 * 1024
    retry_after: Annotated[Duration, Field(ge=1, le=3600)] = 2.0
    request_limit: _LimitDocument | None = None


def _model_policy(raw: _Defaults, base: ModelPolicy) -> ModelPolicy:
    """Return the raw policy with everything unset taken from `base`."""
    timeout_s, mix = raw.generation_timeout, raw.prompt_output_mix
    versions = raw.versions if isinstance(raw, _Model) else None
    return ModelPolicy(
        versions=None if versions is None else MappingProxyType(dict(sorted(versions.items()))),
        balance=raw.balance or base.balance,
        mix=Mix(mix.prompt, mix.output) if mix else base.mix,
        generation_timeout_s=base.generation_timeout_s if timeout_s is None else timeout_s,
        max_queue=base.max_queue if raw.max_queue is None else raw.max_queue,
        slow_start_s=base.slow_start_s if raw.slow_start is None else raw.slow_start,
        requires=base.requires if raw.requires is None else _requirements(raw.requires),
        request_limit=_request_limit(raw.request_limit) or base.request_limit,
        correction=base.correction if raw.correction is None else _correction(raw.correction),
    )


def _correction(raw: _CorrectionDocument) -> Correction:
    bounds = Bounds(lowest=raw.lowest, highest=raw.highest)
    return Correction(enabled=raw.enabled, bounds=bounds)


def _request_limit(raw: _LimitDocument | None) -> RequestLimit | None:
    if raw is None:
        return None
    return RequestLimit(rate_per_s=raw.rate, rate_per_s_per_a100=raw.rate_per_a100, burst=raw.burst)


def _requirements(raw: _RequirementsDocument) -> Requirements:
    return Requirements(
        gpu_models=tuple(raw.gpu_models or ()),
        min_compute_capability=raw.min_compute_capability,
    )


def _problem(source: str, path: str, value: object, expected: str) -> Problem:
    return Problem(
        source=source, path=path, value=shown(value), expected=expected, meanwhile=_MEANWHILE
    )


def _name_problems(document: _PolicyDocument, source: str) -> list[Problem]:
    """Names that no engine can register and no route can hold."""
    problems: list[Problem] = []
    for model, raw in document.models.items():
        named = [(f"models.{model}", model)]
        named += [(f"models.{model}.versions.{v}", v) for v in raw.versions or {}]
        for path, name in named:
            fault = name_fault(name) or (None if name else "a name that is not empty")
            if fault:
                problems.append(_problem(source, path, name, fault))
    return problems


def _split_problems(document: _PolicyDocument, source: str) -> list[Problem]:
    """A split whose weights are all zero would make Envoy refuse the whole route table."""
    expected = "at least one version with a weight above 0 (all-zero serves nobody)"
    return [
        _problem(source, f"models.{model}.versions", raw.versions, expected)
        for model, raw in document.models.items()
        if raw.versions is not None and sum(raw.versions.values()) == 0
    ]
