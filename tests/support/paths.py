"""Where the real programs are, or why a test cannot have one.

A function here answers with a path or None; `reason` says in the skipped test's line how to get it.
"""

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".tools"

REASONS = {
    "envoy": "no envoy in this venv: `make test` installs it from the lock",
    "consul": "no consul on PATH, in .tools or in WATTMESH_CONSUL: `make test` tries to set it up",
    "vllm": "no .venv-vllm with vLLM: `make test` tries to set it up",
}


def envoy() -> str | None:
    """Return the Envoy binary of this venv, else the one on PATH."""
    return shutil.which("envoy", path=str(Path(sys.prefix) / "bin")) or shutil.which("envoy")


def consul() -> str | None:
    """Return a Consul binary: the one named, the one `make test` unpacked, or the one on PATH."""
    named = os.environ.get("WATTMESH_CONSUL")
    candidates = [named] if named else [str(TOOLS / "consul/usr/bin/consul"), "consul"]
    return next((found for name in candidates if (found := shutil.which(name))), None)


def vllm_python() -> str | None:
    """Return the Python that can import vLLM: the one named, or that of .venv-vllm."""
    named = os.environ.get("WATTMESH_VLLM_PYTHON")
    if named:
        return shutil.which(named)
    venv = ROOT / ".venv-vllm"
    return str(venv / "bin/python") if (venv / ".ready").exists() else None


def reason(tool: str) -> str | None:
    """Return why a test marked with this tool cannot run here; None when it can."""
    found = {"envoy": envoy, "consul": consul, "vllm": vllm_python}[tool]()
    return None if found else REASONS[tool]


def wattmesh() -> list[str]:
    """Return the command line that starts this project's console script."""
    script = Path(sys.prefix) / "bin/wattmesh"
    return [str(script)] if script.exists() else [sys.executable, "-m", "control_plane.cli"]
