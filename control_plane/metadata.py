"""The metadata of an engine in Consul: the contract between the agent that writes and we who read.

Consul stores strings only. A key that is absent means "unknown", which is its own value (None)
all the way to the plan. `parse_metadata(render_metadata(m)) == m` for every valid m.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from control_plane.errors import Problem

STATES = ("warming", "ready", "draining")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetadata:
    """What an engine declares about itself. None = unknown."""

    model: str
    socket: str  # absolute path of the Unix socket on the engine's host, at most 107 bytes
    version: str = ""
    state: str = "ready"  # one of STATES
    gpu_model: str | None = None  # raw name, as the driver reports it
    gpu_count: int | None = None
    gpu_memory_mib: int | None = None
    gpu_compute_capability: str | None = None
    gpu_power: float | None = None  # explicit relative capacity; one A100-80GB = 100
    gpu_power_limit_w: float | None = None
    gpu_power_default_w: float | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    tensor_parallel_size: int | None = None
    vllm_version: str | None = None
    zone: str | None = None
    keep_alive_s: float | None = None  # the engine closes idle connections after this


def parse_metadata(
    meta: Mapping[str, str], *, source: str, path: str
) -> tuple[EngineMetadata | None, tuple[Problem, ...]]:
    """Return the metadata and every problem; None when the engine cannot be used at all."""
    raise NotImplementedError


def render_metadata(metadata: EngineMetadata) -> dict[str, str]:
    """Return the Consul form: strings only, unknown keys left out."""
    raise NotImplementedError
