"""The core does no I/O and knows no clock: it imports none of the modules that would let it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHELL = {"asyncio", "socket", "aiohttp", "grpc", "time", "consul", "subprocess"}
CORE = [
    *(ROOT / "control_plane" / f"{name}.py" for name in (
        "addresses", "canary", "canary_forms", "canary_wave", "capacity", "catalog", "checks",
        "connect_rate", "debounce", "documents", "errors", "explain", "fleet", "guard", "identity",
        "limits", "metadata", "observations", "orphans", "plan", "plan_diff", "plan_view",
        "planner", "policy", "posterior", "quarantine", "requirements", "snapshot", "stream",
        "subscription", "thresholds", "weights", "xds_status",
    )),
    *sorted((ROOT / "control_plane" / "resources").glob("*.py")),
    *(ROOT / "control_plane" / "lkg" / f"{name}.py" for name in (
        "codec", "dump", "endpoints", "world",
    )),
    *(ROOT / "engines" / f"{name}.py" for name in (
        "compute_capability", "gpu", "gpu_amd", "gpu_assignment", "gpu_facts", "keep_alive",
        "node_config", "preflight", "vllm_args",
    )),
    *(ROOT / "engines" / "simulator" / f"{name}.py" for name in ("openai_api", "service_model")),
]  # fmt: skip


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_core_imports_no_shell(path):
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert not imported & SHELL
