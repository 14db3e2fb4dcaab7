"""Start vLLM's OpenAI server so that it listens on nothing but its Unix socket.

An engine of a single rank still rendezvouses with itself: torch.distributed opens a TCP store and
one gloo listener per process group, nine listening sockets that nobody ever connects to. For a
world of one rank this module gives it an in-process store and torch's no-op backend instead; every
collective of one rank is the identity, and vLLM skips them. Worlds of several ranks are untouched.

Run by path in the vLLM environment (`python engines/vllm_entry.py --model ...`); it imports nothing
of ours. vLLM's workers import it again as their main module, which is how the change reaches them.
"""

import runpy

import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401 registers the "fake" backend

_init_process_group = dist.init_process_group
_new_group = dist.new_group


# A plain "fake" would still give gloo to the CPU.
_NO_SOCKETS = "cpu:fake"


def _listens(backend: object) -> bool:
    return backend is None or "gloo" in str(backend)


def init_process_group(backend=None, init_method=None, **options):  # type: ignore[no-untyped-def]
    """Stand in for torch.distributed.init_process_group, without sockets for a single rank."""
    if options.get("world_size") == 1:
        init_method, options["store"] = None, options.get("store") or dist.HashStore()
        backend = _NO_SOCKETS if _listens(backend) else backend
    return _init_process_group(backend=backend, init_method=init_method, **options)


def new_group(ranks=None, *args, backend=None, **options):  # type: ignore[no-untyped-def]
    """Stand in for torch.distributed.new_group, without sockets for a single rank."""
    if dist.get_world_size() == 1 and _listens(backend):
        backend = "fake"
    return _new_group(ranks, *args, backend=backend, **options)


dist.init_process_group = init_process_group
dist.new_group = new_group

if __name__ == "__main__":
    # This file stays the main module: that is what spawned workers import again.
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
