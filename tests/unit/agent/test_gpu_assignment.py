"""Which cards an engine uses, and what it declares of them."""

import pytest

from control_plane.metadata import EngineMetadata
from engines.gpu import load_gpu_table
from engines.gpu_assignment import assign_gpus, is_news, with_facts
from engines.gpu_facts import GpuCard, GpuSurvey
from engines.gpu_probe import GpuProbe
from engines.node_config import EngineSpec
from tests.support.recorded_nvml import GB10, JETSON, MIG_A100, RecordedNvml, h100, no_tool

TABLE = load_gpu_table()
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
L4 = {"Name": "NVIDIA L4", "UUID": "GPU-14000000", "CudaComputeCapability": (8, 9)}


def host(*cards):
    return GpuProbe(RecordedNvml(*cards), no_tool).survey()


def spec(**more):
    return EngineSpec(name="e0", model="acme/fox", **more)


def chosen(engine, env, survey):
    return [gpu.card.index for gpu in assign_gpus(engine, env, survey).gpus]


@pytest.mark.parametrize(
    ("engine", "env", "indices"),
    [
        pytest.param({}, {}, [0], id="vLLM takes the first"),
        pytest.param({"tensor_parallel_size": 2}, {}, [0, 1], id="as many as it has ranks"),
        pytest.param(
            {"tensor_parallel_size": 2, "args": ("--pipeline-parallel-size=2",)},
            {},
            [0, 1, 2, 3],
            id="parallel sizes multiply",
        ),
        pytest.param({"gpus": (2,)}, {}, [2], id="the ones it is given"),
        pytest.param({"gpus": (3, 1), "tensor_parallel_size": 2}, {}, [3, 1], id="in that order"),
        pytest.param({"gpus": (3, 1), "tensor_parallel_size": 1}, {}, [3], id="no more than ranks"),
        pytest.param(
            {"gpus": ("GPU-6a1c0000-0000-0000-0000-000000000002",)}, {}, [2], id="by UUID"
        ),
        pytest.param({}, {"CUDA_VISIBLE_DEVICES": "2,3"}, [2], id="by the environment"),
        pytest.param({}, {"CUDA_VISIBLE_DEVICES": " 1 "}, [1], id="spaces"),
        pytest.param({}, {"CUDA_VISIBLE_DEVICES": ""}, [], id="an empty list hides all"),
        pytest.param({}, {"CUDA_VISIBLE_DEVICES": "-1"}, [], id="-1 hides all"),
        pytest.param(
            {"tensor_parallel_size": 2}, {"CUDA_VISIBLE_DEVICES": "1,x,2"}, [1], id="CUDA stops"
        ),
        pytest.param({}, {"CUDA_VISIBLE_DEVICES": "9"}, [], id="a card that is not there"),
        pytest.param({"gpus": ()}, {}, [], id="it is to use none"),
        pytest.param({"launcher": "simulated"}, {}, [], id="a simulated engine uses none"),
        pytest.param({"launcher": "simulated", "gpus": (1,)}, {}, [1], id="but it may play one"),
    ],
)
def test_an_engine_uses(engine, env, indices):
    assert chosen(spec(**engine), env, host(*(h100(i) for i in range(4)))) == indices


def test_among_unlike_cards_indices_count_only_in_the_drivers_order():
    mixed = host(L4, h100(1))
    assert chosen(spec(), PCI, mixed) == [0]
    assert chosen(spec(), {}, mixed) == []  # CUDA would put the fastest first
    assert chosen(spec(gpus=("GPU-6a1c",)), {}, mixed) == [1]  # a UUID needs no order


def test_what_was_asked_for_and_is_not_there_is_named():
    found = assign_gpus(spec(gpus=(1, 7), tensor_parallel_size=2), {}, host(h100(0), h100(1)))
    assert (found.gpus, found.missing, found.present) == ((), (7,), 2)
    nothing_known = assign_gpus(spec(gpus=(7,)), {}, GpuSurvey(reasons=("no NVML",)))
    assert (nothing_known.gpus, nothing_known.missing) == ((), ())


def test_a_mig_slice_is_a_device_of_its_own():
    survey = host(MIG_A100)
    (gpu,) = assign_gpus(spec(gpus=("MIG-1000",)), {}, survey).gpus
    assert (gpu.name, gpu.memory_mib) == ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9728)
    (first,) = assign_gpus(spec(gpus=(0,)), {}, survey).gpus
    assert first.name == "NVIDIA A100-SXM4-80GB MIG 3g.40gb"


def test_amds_cards_count_where_there_is_no_nvidia():
    amd = GpuCard(index=0, vendor="amd", name="AMD Instinct MI300X", memory_mib=196592)
    (gpu,) = assign_gpus(spec(), {}, GpuSurvey(cards=(amd,))).gpus
    assert gpu.card is amd
    both = GpuSurvey(cards=(*host(h100()).cards, amd))
    (gpu,) = assign_gpus(spec(), {}, both).gpus
    assert gpu.card.vendor == "nvidia"
    assert chosen(spec(), {"HIP_VISIBLE_DEVICES": "1"}, GpuSurvey(cards=(amd,))) == []


def declared(engine, *cards, env=PCI):
    return with_facts(engine, assign_gpus(engine, env, host(*cards)), TABLE)


def test_the_driver_fills_in_what_node_yaml_leaves_open():
    filled = declared(spec(), h100(EnforcedPowerLimit=400_000))
    assert filled.gpu_model == "NVIDIA H100 80GB HBM3"
    assert (filled.gpu_count, filled.gpu_memory_mib) == (1, 81559)
    assert filled.gpu_compute_capability == "9.0"
    assert (filled.gpu_power_limit_w, filled.gpu_power_default_w) == (400, 700)


def test_what_node_yaml_says_wins():
    said = spec(
        gpu_model="NVIDIA L4",
        gpu_count=3,
        gpu_memory_mib=1,
        gpu_compute_capability="8.9",
        gpu_power_limit_w=50,
        gpu_power_default_w=72,
    )
    assert declared(said, h100()) == said


def test_of_several_cards_the_least_counts():
    filled = declared(
        spec(tensor_parallel_size=2),
        h100(0, EnforcedPowerLimit=650_000),
        h100(1, EnforcedPowerLimit=500_000),
    )
    assert (filled.gpu_count, filled.gpu_power_limit_w) == (2, 500)


def test_unlike_cards_have_no_common_name():
    filled = declared(spec(tensor_parallel_size=2), L4, h100(1))
    assert (filled.gpu_model, filled.gpu_count) == (None, 2)
    assert filled.gpu_compute_capability == "8.9"
    assert filled.gpu_memory_mib is None  # the L4 does not tell


@pytest.mark.case("F1")
@pytest.mark.parametrize(
    ("card", "memory_mib", "capability", "limit_w"),
    [(JETSON, None, None, 60), (GB10, None, "12.1", 140), ({}, None, None, None)],
)
def test_f1_what_the_driver_does_not_say_stays_unknown(card, memory_mib, capability, limit_w):
    filled = declared(spec(), card)
    assert filled.gpu_memory_mib == memory_mib
    assert filled.gpu_compute_capability == capability
    assert filled.gpu_power_limit_w == limit_w
    assert filled.gpu_power_default_w is None


def test_how_many_is_known_even_where_no_driver_answers():
    engine = spec(gpus=(0, 1), tensor_parallel_size=2)
    filled = with_facts(engine, assign_gpus(engine, {}, GpuSurvey()), TABLE)
    assert (filled.gpu_count, filled.gpu_model) == (2, None)
    assert with_facts(spec(), assign_gpus(spec(), {}, GpuSurvey()), TABLE) == spec()


def metadata(**more):
    return EngineMetadata(model="acme/fox", socket="/s", **more)


@pytest.mark.parametrize(
    ("before", "now", "news"),
    [
        ({}, {}, False),
        ({"gpu_power_limit_w": 700.0}, {"gpu_power_limit_w": 400.0}, True),
        ({"gpu_power_limit_w": 700.0}, {"gpu_power_limit_w": 699.2}, False),
        ({"gpu_power_limit_w": 70.0}, {"gpu_power_limit_w": 69.0}, True),
        ({"gpu_power_limit_w": 70.0}, {"gpu_power_limit_w": 69.2}, False),
        ({"gpu_power_limit_w": 700.0}, {}, True),
        ({}, {"gpu_power_limit_w": 700.0}, True),
        ({"state": "warming"}, {"state": "ready"}, True),
        ({"gpu_power_limit_w": 70.0}, {"gpu_power_limit_w": 69.9, "state": "draining"}, True),
    ],
)
def test_a_change_is_news_and_a_tremble_is_not(before, now, news):
    assert is_news(metadata(**before), metadata(**now)) is news


def test_the_first_registration_is_news():
    assert is_news(None, metadata())
