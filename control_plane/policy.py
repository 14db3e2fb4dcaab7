"""policy.yaml as typed values. Strict: an unknown field is an error, and all errors come at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

NO_MODELS: Mapping[str, "ModelPolicy"] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPolicy:
    """What the operator wants for one model. Durations in seconds, sizes in bytes."""

    aliases: tuple[str, ...] = ()
    versions: Mapping[str, int] | None = None  # route weights; None = follow capacity
    balance: str = "proportional"  # the only balance so far: share follows gpu_power
    generation_timeout_s: float = 600.0  # longest silence on a stream before it is cut
    retry_after_s: int = 2  # told to callers with a 503


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The whole policy. `defaults` holds for every model that `models` does not name."""

    defaults: ModelPolicy = field(default_factory=ModelPolicy)
    models: Mapping[str, ModelPolicy] = NO_MODELS
    max_request_bytes: int = 32 * 1024 * 1024

    def model(self, name: str) -> ModelPolicy:
        """Return the policy in force for a model."""
        return self.models.get(name, self.defaults)


def parse_policy(data: bytes, *, source: str) -> Policy:
    """Return the policy of a YAML document. Raise InputError with every problem in it."""
    raise NotImplementedError
