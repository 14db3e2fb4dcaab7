"""vLLM's arguments in the spellings that vLLM takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.vllm_args import find_argument, find_count, flag_of


@pytest.mark.parametrize(
    ("args", "value"),
    [
        ([], None),
        (["--dtype", "half"], "half"),
        (["--dtype=half"], "half"),
        (["--dtype=a=b"], "a=b"),
        (["--dtype", "half", "--dtype", "auto"], "auto"),
        (["--dtype"], None),
        (["dtype", "half"], None),
        (["--dtype-x", "half"], None),
    ],
)
def test_the_value_of_a_flag(args, value):
    assert find_argument(args, "--dtype") == value


def test_an_underscore_is_a_dash_in_names_only():
    assert find_argument(["--max_model_len=8_192"], "--max-model-len") == "8_192"
    assert flag_of("--a_b=c_d") == "--a-b"
    assert flag_of("a_b") == "a_b"


@pytest.mark.parametrize(
    ("args", "count"),
    [([], 1), (["-pp", "4"], 4), (["-pp", "0"], 1), (["-pp", "x"], 1), (["-pp", "-2"], 1)],
)
def test_a_count_is_at_least_1(args, count):
    assert find_count(args, "--pipeline-parallel-size", "-pp") == count


@given(st.lists(st.text(max_size=12), max_size=6))
def test_any_arguments_are_read(args):
    assert find_count(args, "-pp") >= 1
