"""GPU names as drivers really report them."""

import pytest

from engines.gpu import load_gpu_table, parse_gpu_table

TABLE = load_gpu_table()


@pytest.mark.case("F2")
@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIE"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("A100-SXM4-40GB", "A100-SXM-40GB"),
        ("Tesla P40", "P40"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2"),
        ("NVIDIA A10", "A10"),
        (b"NVIDIA A10", "A10"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A800 80GB PCIe", "A800-PCIE-80GB"),
        ("NVIDIA GB10", None),
        ("Orin (nvgpu)", None),
        ("", None),
        (b"\xff\xfe", None),
    ],
)
def test_f2_each_name_is_its_own_card(raw, name):
    spec = TABLE.find(raw)
    assert (spec.name if spec else None) == name


def test_every_row_is_reached_by_its_own_name_and_has_a_source():
    for spec in TABLE.specs:
        assert spec.source
        assert min(spec.memory_gib, spec.bandwidth_gb_s, spec.bf16_tflops) > 0
    assert len({spec.name for spec in TABLE.specs}) == len(TABLE.specs)


def test_power_is_relative_to_the_reference_card():
    assert TABLE.relative_power(TABLE.named("A100-SXM-80GB")) == 100
    order = ["P40", "L4", "A10", "L40S", "A100-SXM-80GB", "H100-SXM", "H200", "B200"]
    powers = [TABLE.relative_power(TABLE.named(name)) for name in order]
    assert powers == sorted(powers)
    assert TABLE.relative_power(TABLE.named("L4"), 2) == pytest.approx(2 * powers[1], rel=0.01)


def test_a_row_that_is_none_is_refused():
    with pytest.raises(TypeError, match="patterns"):
        parse_gpu_table([{"name": "x", "patterns": "x"}])
    with pytest.raises(KeyError):
        TABLE.named("Voodoo 2")
