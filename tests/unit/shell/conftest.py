"""Shared by the shell's tests: a short directory for sockets, and Consul-shaped entries."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory whose sockets stay within the kernel's 107 bytes."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    yield path
    shutil.rmtree(path)
