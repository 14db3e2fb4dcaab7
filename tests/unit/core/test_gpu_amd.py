"""AMD's cards from what its tools print, release by release."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.gpu import load_gpu_table
from engines.gpu_amd import ToolOutputError, parse_amd_smi, parse_rocm_smi

TABLE = load_gpu_table()


def watts(value):
    return {"value": value, "unit": "W"}


def static_row(**changed):
    """amd-smi static --json of ROCm 6.2, shortened."""
    return {
        "gpu": 0,
        "asic": {
            "market_name": "AMD Instinct MI300X",
            "vendor_id": "0x1002",
            "asic_serial": "0x6F1F0A2B3C4D5E6F",
            "target_graphics_version": "gfx942",
        },
        "limit": {"max_power": watts(750), "min_power": watts(0), "socket_power": watts(600)},
        "board": {"product_name": "AMD Instinct MI300X OAM"},
        "vram": {"type": "HBM", "size": {"value": 196592, "unit": "MB"}},
        "partition": {"compute_partition": "SPX", "memory_partition": "NPS1"},
        **changed,
    }


METRIC = {
    "gpu": 0,
    "power": {"socket_power": watts(141), "throttle_status": "UNTHROTTLED"},
    "clock": {
        "gfx_0": {
            "clk": {"value": 132, "unit": "MHz"},
            "max_clk": {"value": 2100, "unit": "MHz"},
        },
        "mem_0": {"clk": {"value": 900, "unit": "MHz"}, "max_clk": "N/A"},
    },
    "energy": {"total_energy_consumption": {"value": 98765.432, "unit": "J"}},
}


def amd_smi(*rows, metric=None):
    return parse_amd_smi(json.dumps(list(rows)), None if metric is None else json.dumps(metric))


def test_amd_smi_tells_a_card():
    (card,) = amd_smi(static_row(), metric=[METRIC])
    assert card.vendor == "amd"
    assert (card.index, card.name) == (0, "AMD Instinct MI300X")
    assert (card.architecture, card.compute_capability) == ("gfx942", None)
    assert (card.memory_mib, card.power_enforced_w) == (196592, 600)
    assert (card.sm_clock_mhz, card.sm_clock_max_mhz) == (132, 2100)
    assert (card.memory_clock_mhz, card.memory_clock_max_mhz) == (900, None)
    assert card.throttle_reasons == ()
    assert card.energy_j == 98765.432
    assert card.uuid == "0x6F1F0A2B3C4D5E6F"


def test_amd_smi_of_rocm_7_has_its_rows_and_limits_deeper():
    row = static_row(
        limit={
            "ppt0": {"max_power_limit": watts(750), "socket_power_limit": watts(500)},
            "ppt1": {"max_power_limit": "N/A", "socket_power_limit": "N/A"},
        }
    )
    (card,) = parse_amd_smi(json.dumps({"gpu_data": [row]}), json.dumps({"gpu_data": [METRIC]}))
    assert (card.power_enforced_w, card.sm_clock_mhz) == (500, 132)


@pytest.mark.case("F1")
def test_f1_what_amd_smi_does_not_know_is_unknown():
    row = static_row(
        asic={"market_name": "N/A", "target_graphics_version": "N/A", "asic_serial": "N/A"},
        limit={"max_power": "N/A", "socket_power": watts(0)},  # the second die of an MI250X
        board={"product_name": "N/A"},
        vram={"size": "N/A"},
        partition="N/A",
    )
    (card,) = amd_smi(row, metric=[{"gpu": 0, "power": "N/A", "clock": {}, "energy": "N/A"}])
    assert (card.name, card.architecture, card.uuid) == (None, None, None)
    assert (card.power_enforced_w, card.memory_mib) == (None, None)
    assert (card.throttle_reasons, card.energy_j, card.sm_clock_mhz) == (None, None, None)


def test_the_boards_name_serves_where_the_chip_has_none():
    (card,) = amd_smi(static_row(asic={"market_name": "N/A"}))
    assert card.name == "AMD Instinct MI300X OAM"


def test_a_part_of_a_card_does_not_count_as_a_whole_one():
    (card,) = amd_smi(static_row(partition={"compute_partition": "CPX"}))
    assert card.name == "AMD Instinct MI300X CPX"
    assert TABLE.find(card.name) is None


def test_a_throttled_card_says_so():
    throttled = {"gpu": 0, "power": {"throttle_status": "THROTTLED"}}
    (card,) = amd_smi(static_row(), metric=[throttled])
    assert card.throttle_reasons == ("throttled",)


def test_measurements_that_are_no_json_leave_the_card():
    (card,) = parse_amd_smi(json.dumps([static_row()]), "Segmentation fault")
    assert (card.name, card.energy_j) == ("AMD Instinct MI300X", None)


ROCM_SMI = {
    "card1": {"Card Series": "N/A", "Device Name": "Aldebaran/MI200 [Instinct MI210]"},
    "card0": {
        "Card series": "AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2",
        "Unique ID": "0x9246",
        "VRAM Total Memory (B)": "68702699520",
        "Max Graphics Package Power (W)": "560.0",
        "GFX Version": "gfx90a",
        "sclk clock speed:": "(1090Mhz)",
        "mclk clock speed:": "(1600Mhz)",
    },
    "system": {"Driver version": "6.3.6"},
}


@pytest.mark.parametrize(
    "prefix", ["", "WARNING: AMD GPU device(s) is/are in a low-power state.\n"]
)
def test_rocm_smi_tells_cards(prefix):
    first, second = parse_rocm_smi(prefix + json.dumps(ROCM_SMI, indent=2) + "\n")
    assert (first.index, first.uuid, first.architecture) == (0, "0x9246", "gfx90a")
    assert (first.memory_mib, first.power_enforced_w) == (65520, 560)
    assert (first.sm_clock_mhz, first.memory_clock_mhz) == (1090, 1600)
    assert TABLE.find(first.name).name == "MI250X"
    assert TABLE.find(second.name).name == "MI210"
    assert (second.memory_mib, second.power_enforced_w) == (None, None)


@pytest.mark.parametrize(
    "text", ["", "no GPU", "[WARNING] nothing", "{", '"text"', '{"gpu_data": 1}', "[1, 2"]
)
def test_what_is_not_the_tools_json_is_refused(text):
    with pytest.raises(ToolOutputError, match="expected JSON"):
        parse_amd_smi(text, None)


@pytest.mark.parametrize("text", ["", "[]", "ERROR: no devices"])
def test_what_is_not_rocm_smis_json_is_refused(text):
    with pytest.raises(ToolOutputError, match="rocm-smi"):
        parse_rocm_smi(text)


WORDS = (
    "gpu asic market_name limit ppt0 socket_power vram size value unit clock gfx_0 clk power "
    "throttle_status energy total_energy_consumption partition compute_partition"
)
KEYS = (*WORDS.split(), "Card Series", "VRAM Total Memory (B)")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(st.lists(JSON, max_size=3), st.dictionaries(st.sampled_from(["card0", "card1"]), JSON))
def test_whatever_json_comes_gives_cards_with_known_facts_only(rows, document):
    text = json.dumps(rows)
    for card in (*parse_amd_smi(text, text), *parse_rocm_smi(json.dumps(document))):
        for value in (card.memory_mib, card.power_enforced_w, card.sm_clock_mhz, card.energy_j):
            assert value is None or value > 0
