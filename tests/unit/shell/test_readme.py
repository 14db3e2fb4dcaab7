"""What the control plane's README says about the policy is true."""

import re
from pathlib import Path

import pytest

from control_plane.metadata import EngineMetadata
from control_plane.metrics import Metrics
from control_plane.policy import Policy, parse_policy

README = (Path(__file__).parents[3] / "control_plane/README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
ROWS = re.findall(
    r"^\| `((?:defaults|models|max_request|retry|request_limit)[\w.<>]*)` \| (.*?) \|", README, re.M
)
STATED = [(key, default.strip("`")) for key, default in ROWS if default.startswith("`")]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_policy_examples_parse(example: str) -> None:
    assert parse_policy(example.encode(), source="README.md") != Policy()


def test_the_table_names_every_key() -> None:
    assert [key for key, _ in ROWS] == [
        "max_request_size",
        "retry_after",
        "request_limit",
        "defaults.balance",
        "defaults.prompt_output_mix",
        "defaults.generation_timeout",
        "defaults.max_queue",
        "defaults.slow_start",
        "defaults.requires",
        "defaults.request_limit",
        "defaults.correction",
        "models.<name>.versions",
    ]


@pytest.mark.parametrize(("key", "default"), STATED)
def test_a_stated_default_is_the_default(key: str, default: str) -> None:
    section, _, name = key.rpartition(".")
    document = f"{section}: {{{name}: {default}}}" if section else f"{name}: {default}"
    assert parse_policy(document.encode(), source="README.md") == Policy()


def test_every_metadata_key_and_metric_is_documented() -> None:
    keys = set(EngineMetadata.__dataclass_fields__)
    assert [key for key in sorted(keys) if f"`{key}`" not in README] == []
    names = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in Metrics().registry.collect()
    }
    assert [name for name in sorted(names) if f"`{name}`" not in README] == []
