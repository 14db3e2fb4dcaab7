"""What a host's drivers say of its cards, from recorded answers; and what they do not say."""

import pynvml
import pytest

from engines.gpu import load_gpu_table
from engines.gpu_facts import LimitSource, PowerLimit, known_number, power_limit
from engines.gpu_probe import GpuProbe, NvmlError, PyNvml, ToolError, run_tool
from tests.support.recorded_nvml import (
    GB10,
    JETSON,
    LAPTOP,
    LOST,
    MIG_A100,
    RecordedNvml,
    h100,
    no_tool,
)

TABLE = load_gpu_table()


def survey(*cards, run=no_tool, absent=None):
    return GpuProbe(RecordedNvml(*cards, absent=absent), run).survey()


def only(*cards):
    (card,) = survey(*cards).cards
    return card


def limit(card):
    spec = TABLE.find(card.name or "")
    return power_limit(card, spec.power_default_w if spec else None)


def test_a_card_that_tells_everything():
    card = only(h100())
    assert card.name == "NVIDIA H100 80GB HBM3"
    assert card.uuid == "GPU-6a1c0000-0000-0000-0000-000000000000"
    assert (card.memory_mib, card.compute_capability) == (81559, (9, 0))
    assert (card.power_enforced_w, card.power_default_w) == (700, 700)
    assert (card.sm_clock_mhz, card.sm_clock_max_mhz) == (345, 1980)
    assert (card.memory_clock_mhz, card.memory_clock_max_mhz) == (2619, 2619)
    assert card.throttle_reasons == ("idle",)
    assert card.energy_j == 1234.5
    assert (card.mig_enabled, card.mig_devices, card.lost) == (False, (), None)


@pytest.mark.case("F1")
def test_f1_a_laptop_has_no_management_limit():
    card = only(LAPTOP)
    assert card.name == "NVIDIA GeForce RTX 4090 Laptop GPU"  # recorded as bytes
    assert (card.power_management_w, card.energy_j, card.mig_enabled) == (None, None, None)
    assert limit(card) == PowerLimit(115, LimitSource.ENFORCED)
    assert card.throttle_reasons == ("power cap", "software thermal slowdown")


@pytest.mark.case("F1")
def test_f1_a_jetson_tells_its_name_only():
    card = only(JETSON)
    assert card.name == "Orin (nvgpu)"
    assert card.lost is None
    assert (card.memory_mib, card.compute_capability, card.throttle_reasons) == (None, None, None)
    assert limit(card) == PowerLimit(60, LimitSource.TABLE)


@pytest.mark.case("F1")
def test_f1_the_shared_memory_of_a_gb10_is_unknown_not_0():
    card = only(GB10)
    assert card.memory_mib is None
    assert card.compute_capability == (12, 1)
    assert card.throttle_reasons == ()
    assert limit(card) == PowerLimit(140, LimitSource.TABLE)


@pytest.mark.case("F1")
@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ((300_000, 400_000, 700_000), PowerLimit(300, LimitSource.ENFORCED)),
        ((None, 400_000, 700_000), PowerLimit(400, LimitSource.MANAGEMENT)),
        ((0, 0, 700_000), PowerLimit(700, LimitSource.DEFAULT)),
        ((None, None, None), PowerLimit(700, LimitSource.TABLE)),
        ((0, 0, 0), PowerLimit(700, LimitSource.TABLE)),
    ],
)
def test_f1_the_order_of_power_limits(answers, found):
    keys = ("EnforcedPowerLimit", "PowerManagementLimit", "PowerManagementDefaultLimit")
    recorded = {key: value for key, value in h100().items() if key not in keys}
    recorded |= {k: v for k, v in zip(keys, answers, strict=True) if v is not None}
    assert limit(only(recorded)) == found


@pytest.mark.case("F1")
def test_f1_a_card_of_which_nothing_is_known_has_no_limit():
    card = only({})
    assert (card.name, card.uuid) == (None, None)
    assert limit(card) == PowerLimit(None, LimitSource.UNKNOWN)


@pytest.mark.case("F1")
@pytest.mark.parametrize(
    ("printed", "number"),
    [
        ("[N/A]", None),
        ("N/A", None),
        ("[Not Supported]", None),
        ("", None),
        (0, None),
        ("0", None),
        (None, None),
        (True, None),
        (float("nan"), None),
        (float("inf"), None),
        (-5, None),
        (10**400, None),
        ({"value": "N/A", "unit": "W"}, None),
        ({"value": 750, "unit": "W"}, 750),
        ("750.0", 750),
        ("115.00 W", 115),
        ("(1090Mhz)", 1090),
    ],
)
def test_f1_only_a_number_above_0_is_known(printed, number):
    assert known_number(printed) == number


@pytest.mark.case("F1")
def test_f1_a_host_without_nvml_has_no_cards_and_a_reason():
    found = survey(absent="NVML Shared Library Not Found")
    assert found.cards == ()
    nvidia, amd = found.reasons
    assert "NVML Shared Library Not Found" in nvidia
    assert "PATH" in amd


@pytest.mark.case("F1")
def test_f1_the_real_binding_answers_or_says_why():
    found = GpuProbe(PyNvml(), no_tool).survey()
    assert found.cards or any(reason.startswith("NVIDIA: ") for reason in found.reasons)


def test_a_question_that_nvml_does_not_know_is_an_answer_that_is_missing():
    with pytest.raises(NvmlError):
        PyNvml().ask("nvmlDeviceGetCount")  # without an nvmlInit, on any host


def test_every_question_is_one_that_nvidias_binding_has():
    nvml = RecordedNvml({}, MIG_A100)
    GpuProbe(nvml, no_tool).survey()
    assert len(nvml.asked) > 15
    assert [name for name in nvml.asked if not callable(getattr(pynvml, name, None))] == []


def test_a_lost_card_is_told_and_the_others_stay():
    first, second, third = survey(h100(0), {"lost": True}, h100(2)).cards
    assert (first.lost, third.lost) == (None, None)
    assert second.lost == "GPU is lost"
    assert (second.index, second.name) == (1, None)


def test_a_card_that_is_lost_between_two_questions_is_lost():
    assert only(h100(ClockInfoSm=LOST)).lost == "GPU is lost"


def test_mig_devices_are_told_with_their_own_names():
    card = only(MIG_A100)
    assert card.mig_enabled is True
    assert [device.name for device in card.mig_devices] == [
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
    ]
    assert [device.memory_mib for device in card.mig_devices] == [40192, 9728]


def test_an_old_driver_knows_the_reasons_by_their_old_name():
    recorded = h100()
    recorded["CurrentClocksThrottleReasons"] = 0x80 | 0x40 | 0x400
    del recorded["CurrentClocksEventReasons"]
    assert only(recorded).throttle_reasons == (
        "hardware thermal slowdown",
        "power brake",
        "reason 0x400",
    )


def test_nvml_is_opened_once_and_again_after_it_went_away():
    nvml = RecordedNvml(h100())
    probe = GpuProbe(nvml, no_tool)
    probe.survey()
    assert probe.survey().cards
    assert nvml.opened == 1
    nvml.absent = "Driver Not Loaded"
    assert not probe.survey().cards
    nvml.absent = None
    assert probe.survey().cards
    assert nvml.opened == 2


def test_a_driver_without_cards_is_a_reason():
    assert "no card" in survey().reasons[0]


AMD_SMI = '{"gpu_data": [{"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X"}}]}'


def tools(answers):
    def run(*argv):
        answer = answers.get(argv[:2], answers.get(argv[:1]))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return run


@pytest.mark.parametrize(
    ("answers", "names", "reason"),
    [
        pytest.param({("amd-smi",): AMD_SMI}, ["AMD Instinct MI300X"], None, id="amd-smi"),
        pytest.param(
            {("amd-smi", "static"): AMD_SMI, ("amd-smi", "metric"): ToolError("slow")},
            ["AMD Instinct MI300X"],
            None,
            id="measurements missing",
        ),
        pytest.param(
            {("amd-smi",): "Traceback", ("rocm-smi",): '{"card0": {"Card Series": "MI300X"}}'},
            ["MI300X"],
            None,
            id="rocm-smi where amd-smi is broken",
        ),
        pytest.param({("amd-smi",): ToolError("slow")}, [], "AMD: slow", id="too slow"),
        pytest.param({("rocm-smi",): "{}"}, [], "AMD: the driver shows no card", id="no card"),
    ],
)
def test_amds_tools_are_asked_in_turn(answers, names, reason):
    found = survey(run=tools(answers), absent="NVML Shared Library Not Found")
    assert [card.name for card in found.cards] == names
    assert (found.reasons[-1] == reason) if reason else len(found.reasons) == 1


def test_amds_tools_are_not_asked_at_every_survey():
    asked = []

    def run(*argv):
        asked.append(argv)

    probe = GpuProbe(RecordedNvml(h100()), run)
    probe.survey()
    first = len(asked)
    probe.survey()
    assert first
    assert len(asked) == first


def test_a_tool_that_is_not_there_is_no_failure():
    assert run_tool("no-such-tool-anywhere") is None


@pytest.mark.parametrize("argv", [("sh", "-c", "echo broken >&2; exit 3"), ("false",)])
def test_a_tool_that_fails_is_told(argv):
    with pytest.raises(ToolError, match="ended with"):
        run_tool(*argv)


def test_what_a_tool_prints_is_returned_even_when_it_complains():
    assert run_tool("sh", "-c", "echo '{}'; exit 1") == "{}\n"
