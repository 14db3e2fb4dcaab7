"""GPU names as drivers really report them, and the table that they are looked up in."""

import pytest

from control_plane.capacity import find_gpu
from control_plane.errors import InputError
from engines.compute_capability import parse_compute_capability
from engines.gpu import REFERENCE_GPU, decode_name, load_gpu_table, parse_gpu_table

TABLE = load_gpu_table()

# What nvidia-smi, amd-smi, rocm-smi and hl-smi print, or what their libraries answer.
NAMES = [
    ("Tesla P40", "P40"),
    ("Tesla P100-SXM2-16GB", "P100-SXM2"),
    ("Tesla P100-PCIE-16GB", "P100-PCIE-16GB"),
    ("Tesla P100-PCIE-12GB", "P100-PCIE-12GB"),
    ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
    ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
    ("Tesla V100-SXM3-32GB", "V100-SXM2-32GB"),
    ("Tesla V100-PCIE-16GB", "V100-PCIE-16GB"),
    ("Tesla V100-PCIE-32GB", "V100-PCIE-32GB"),
    ("Tesla V100S-PCIE-32GB", "V100S-PCIE-32GB"),
    ("Tesla T4", "T4"),
    ("NVIDIA T4G", "T4"),
    ("NVIDIA A10", "A10"),
    (b"NVIDIA A10", "A10"),
    (b"NVIDIA A10\0\0", "A10"),
    ("NVIDIA A10G", "A10G"),
    ("NVIDIA A16", "A16"),
    ("NVIDIA A30", "A30"),
    ("NVIDIA A40", "A40"),
    ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
    ("A100-SXM4-40GB", "A100-SXM-40GB"),
    ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"),
    ("NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
    ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
    ("NVIDIA A800-SXM4-80GB", "A800-SXM-80GB"),
    ("NVIDIA A800 80GB PCIe", "A800-PCIE-80GB"),
    ("NVIDIA GeForce RTX 3090", "RTX-3090"),
    ("NVIDIA RTX A6000", "RTX-A6000"),
    ("Orin (nvgpu)", "Orin"),
    ("Jetson AGX Orin", "Orin"),
    ("NVIDIA Jetson AGX Orin Developer Kit", "Orin"),
    ("NVIDIA L4", "L4"),
    ("NVIDIA L40", "L40"),
    ("NVIDIA L40S", "L40S"),
    ("NVIDIA GeForce RTX 4090", "RTX-4090"),
    ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
    ("NVIDIA H100 80GB HBM3", "H100-SXM"),
    ("NVIDIA H100 PCIe", "H100-PCIE"),
    ("NVIDIA H100 NVL", "H100-NVL"),
    ("NVIDIA H20", "H20"),
    ("NVIDIA H200", "H200"),
    ("NVIDIA H200 NVL", "H200-NVL"),
    ("NVIDIA B200", "B200"),
    ("NVIDIA GB200", "GB200"),
    ("NVIDIA GeForce RTX 5090", "RTX-5090"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-Server"),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000-Workstation"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX-PRO-6000-Max-Q"),
    ("NVIDIA GB10", "GB10"),
    ("AMD Instinct MI210", "MI210"),
    ("Instinct MI210", "MI210"),
    ("Aldebaran/MI200 [Instinct MI210]", "MI210"),
    ("AMD Instinct MI250", "MI250"),
    ("AMD Instinct MI250X", "MI250X"),
    ("AMD Instinct MI250X / MI250", "MI250X"),
    ("Aldebaran/MI200 [Instinct MI250X/MI250]", "MI250X"),
    ("AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2", "MI250X"),
    ("AMD Instinct MI300X", "MI300X"),
    ("AMD Instinct MI300X OAM", "MI300X"),
    ("AMD Instinct MI300X VF", "MI300X"),
    ("MI300X-O", "MI300X"),
    ("Aqua Vanjaram [Instinct MI300X]", "MI300X"),
    ("AMD Instinct MI325X", "MI325X"),
    ("AMD Instinct MI325 OAM", "MI325X"),
    ("HL-225", "Gaudi-2"),
    ("HL-225H", "Gaudi-2"),
    ("HL-325L", "Gaudi-3"),
]
UNKNOWN = [
    "",
    " ",
    b"\xff\xfe",
    "NVIDIA",
    "NVIDIA A100",  # which of five?
    "NVIDIA A10M",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA H100",
    "GRID A100D-80C",
    "Quadro RTX 6000",
    "AMD Instinct MI308X",
    "AMD Instinct MI300A",
    "HL-225D",
    "NVIDIA A100-SXM4-80GB MIG 3g.40gb",  # a share of a card, see find_gpu
]


@pytest.mark.case("F2")
@pytest.mark.parametrize(("raw", "name"), NAMES)
def test_f2_each_name_is_its_own_card(raw, name):
    spec = TABLE.find(raw)
    assert spec is not None
    assert spec.name == name


@pytest.mark.case("F2")
@pytest.mark.parametrize("raw", UNKNOWN)
def test_f2_a_name_that_no_row_spells_is_unknown(raw):
    assert TABLE.find(raw) is None


@pytest.mark.case("F2")
@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "A100-SXM-80GB"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "H100-SXM"),
        ("NVIDIA H200 MIG 4g.71gb", "H200"),
    ],
)
def test_f2_a_mig_slice_is_of_its_card(raw, name):
    spec, compute, memory = find_gpu(TABLE, raw)
    assert spec is not None
    assert spec.name == name
    assert compute < 1
    assert memory < 1


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"NVIDIA H100 80GB HBM3\0", "NVIDIA H100 80GB HBM3"),
        ("  NVIDIA  L4\n", "NVIDIA L4"),
        (b"\xff", "\ufffd"),
        ("", ""),
    ],
)
def test_a_name_is_decoded_and_its_spaces_are_single(raw, text):
    assert decode_name(raw) == text


def test_every_row_is_reached_by_a_real_name():
    assert {name for _, name in NAMES} == {spec.name for spec in TABLE.specs}


def test_the_numbers_of_a_row_are_those_of_one_device():
    assert TABLE.named(REFERENCE_GPU).bf16_tflops == 312
    for spec in TABLE.specs:
        assert spec.source
        assert 8 <= spec.memory_gib <= 300
        assert 10 < spec.power_default_w <= 1200
        # Between 60 and 700 FLOP for each byte read: no sparse figure, no unit mixed up.
        if spec.name not in ("P40", "P100-SXM2", "P100-PCIE-16GB", "P100-PCIE-12GB", "H20"):
            assert 60 <= spec.bf16_tflops * 1000 / spec.bandwidth_gb_s <= 700


def test_only_nvidias_cards_have_a_compute_capability():
    others = {spec.name for spec in TABLE.specs if spec.compute_capability is None}
    assert others == {"MI210", "MI250", "MI250X", "MI300X", "MI325X", "Gaudi-2", "Gaudi-3"}
    assert parse_compute_capability(TABLE.named("GB10").compute_capability) == (12, 1)


ROW = (
    '{name: %s, memory_gib: 24, bandwidth_gb_s: 300, bf16_tflops: 121, compute_capability: "8.9", '
    "power_default_w: 72, patterns: [l4], source: somewhere}"
)


def test_a_table_with_errors_is_refused_with_all_of_them():
    text = (
        f"- {ROW % 'L4'}\n"
        "- {name: X, memory_gib: 0, bandwidth_gb_s: fast, bf16_tflops: 1, "
        "compute_capability: gfx942, power_default_w: 1, patterns: ['('], source: '', tdp: 1}\n"
        "- {name: Y}\n"
    )
    with pytest.raises(InputError) as error:
        parse_gpu_table(text.encode(), source="gpus.yaml")
    assert {problem.source for problem in error.value.problems} == {"gpus.yaml"}
    paths = {problem.path for problem in error.value.problems}
    assert paths >= {
        "[1].memory_gib",
        "[1].bandwidth_gb_s",
        "[1].compute_capability",
        "[1].patterns[0]",
        "[1].source",
        "[1].tdp",
        "[2].memory_gib",
        "[2].patterns",
    }


def test_a_row_given_twice_is_refused():
    with pytest.raises(InputError, match="no other row has"):
        parse_gpu_table(f"- {ROW % 'L4'}\n- {ROW % 'L4'}\n".encode(), source="gpus.yaml")


def test_a_row_that_is_not_there():
    with pytest.raises(KeyError):
        TABLE.named("Voodoo 2")
