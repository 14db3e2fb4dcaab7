"""The command line of an engine: pure, from its spec to argv and environment.

vLLM listens on its Unix socket only, logs no prompt, always reports token usage, and keeps idle
connections for exactly as long as Envoy was told.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.node_config import VISIBLE_DEVICES, EngineSpec, NodeConfig
from engines.sockets import ENGINE_UMASK

# CUDA would put the fastest card first; vLLM and we count as the driver's tools do.
_DRIVERS_ORDER = "PCI_BUS_ID"
_VLLM_ENTRY = str(Path(__file__).with_name("vllm_entry.py"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A process to supervise."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]  # the whole environment
    umask: int = -1  # -1 keeps the parent's


def engine_command(config: NodeConfig, engine: EngineSpec, *, vllm_python: str) -> Command:
    """Return how to start an engine."""
    argv, env = (
        _vllm(config, engine, vllm_python)
        if engine.launcher == "vllm"
        else _simulated(config, engine)
    )
    inherited = dict(os.environ)
    if engine.gpus is not None:
        # ROCm's own variables would count on top of CUDA_VISIBLE_DEVICES, which it honours too.
        inherited = {k: v for k, v in inherited.items() if k not in VISIBLE_DEVICES}
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in engine.gpus)
        env["CUDA_DEVICE_ORDER"] = _DRIVERS_ORDER
    return Command(
        name=engine.name,
        argv=tuple(argv),
        env={**inherited, **env, **engine.env},
        umask=ENGINE_UMASK,
    )


def _vllm(config: NodeConfig, engine: EngineSpec, python: str) -> tuple[list[str], dict[str, str]]:
    argv = [
        python,
        _VLLM_ENTRY,
        *("--model", engine.model_path or engine.model),
        *("--served-model-name", engine.model),
        *("--uds", config.socket(engine)),
        "--enable-force-include-usage",
        "--no-enable-log-requests",
        "--disable-uvicorn-access-log",
        *_optional(engine, "max_num_seqs", "max_model_len", "tensor_parallel_size"),
        *engine.args,
    ]
    env = {
        "CUDA_DEVICE_ORDER": _DRIVERS_ORDER,
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": f"{config.engine_keep_alive_s:.0f}",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return argv, env


def _simulated(config: NodeConfig, engine: EngineSpec) -> tuple[list[str], dict[str, str]]:
    argv = [
        *(sys.executable, "-m", "engines.simulator"),
        *("--uds", config.socket(engine)),
        *("--served-model-name", engine.model),
        *("--keep-alive", f"{config.engine_keep_alive_s:g}"),
        *_optional(engine, "max_num_seqs", "max_model_len"),
    ]
    if engine.gpu_model is not None:
        argv += ["--gpu", engine.gpu_model]
    if engine.gpu_power is not None:
        argv += ["--gpu-power", f"{engine.gpu_power:g}"]
    return [*argv, *engine.args], {}


def _optional(engine: EngineSpec, *fields: str) -> list[str]:
    argv: list[str] = []
    for name in fields:
        value = getattr(engine, name)
        if value is not None:
            argv += [f"--{name.replace('_', '-')}", str(value)]
    return argv
