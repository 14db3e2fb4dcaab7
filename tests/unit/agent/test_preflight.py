"""What is refused before vLLM starts, what passes with a warning, and what the messages say."""

import pytest

from engines.gpu_assignment import assign_gpus
from engines.gpu_facts import GpuCard, GpuSurvey
from engines.gpu_probe import GpuProbe
from engines.node_config import EngineSpec
from engines.preflight import preflight
from tests.support.recorded_nvml import GB10, MIG_A100, RecordedNvml, h100, memory, no_tool

GIB = 2**30


def card(name, capability, mib=81559, **more):
    recorded = {"Name": name, "MemoryInfo": memory(mib), **more}
    return recorded if capability is None else {**recorded, "CudaComputeCapability": capability}


P40 = card("Tesla P40", (6, 1), 24576)
V100 = card("Tesla V100-SXM2-32GB", (7, 0), 32768)
T4 = card("Tesla T4", (7, 5), 15360)
L4 = card("NVIDIA L4", (8, 9), 23034)
OLD_DRIVER = card("NVIDIA H100 80GB HBM3", None)


def verdict(*cards, weights_bytes=None, env=None, **spec):
    engine = EngineSpec(name="e0", model="acme/fox", **spec)
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **(env or {})}
    survey = GpuProbe(RecordedNvml(*cards), no_tool).survey()
    return preflight(engine, env, assign_gpus(engine, env, survey), weights_bytes)


@pytest.mark.parametrize(
    ("recorded", "args", "refused"),
    [
        pytest.param(P40, (), "6.1, and vLLM needs at least 7.0", id="Pascal"),
        pytest.param(T4, (), None, id="Turing"),
        pytest.param(T4, ("--dtype", "bfloat16"), "dtype bfloat16 needs at least 8.0", id="bf16"),
        pytest.param(T4, ("--dtype=half",), None, id="half"),
        pytest.param(T4, ("--dtype", "auto"), None, id="vLLM falls back by itself"),
        pytest.param(L4, ("--dtype", "bfloat16"), None, id="Ada has bf16"),
        pytest.param(
            T4, ("--attention-backend", "FLASH_ATTN"), "FLASH_ATTN needs at least 8.0", id="FA"
        ),
        pytest.param(T4, ("--attention_backend=TRITON_ATTN",), None, id="Triton"),
        pytest.param(L4, ("--attention-backend", "FLASHMLA"), "at least 9.0", id="MLA"),
        pytest.param(h100(), ("--attention-backend", "FLASHMLA"), None, id="MLA on Hopper"),
        pytest.param(h100(), ("--attention-backend", "OF_TOMORROW"), None, id="not known here"),
        pytest.param(GB10, ("--attention-backend", "FLASH_ATTN"), None, id="12.1 is not below 8"),
    ],
)
def test_compute_capability(recorded, args, refused):
    found = verdict(recorded, args=args)
    if refused is None:
        assert found.refusal is None
    else:
        assert refused in found.refusal
        assert recorded["Name"] in found.refusal


def test_a_refusal_names_card_need_and_remedy():
    assert verdict(h100(0), P40, gpus=(1,)).refusal == (
        "GPU 1 (Tesla P40) has compute capability 6.1, and vLLM needs at least 7.0; "
        "use a newer card, or give the engine others with gpus"
    )


def test_the_backend_of_older_releases_is_read_too():
    assert "FLASH_ATTN" in verdict(T4, env={"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}).refusal


def test_one_card_of_several_is_enough_to_refuse():
    assert "GPU 1" in verdict(h100(0), P40, tensor_parallel_size=2).refusal


def test_unknown_passes_with_a_warning():
    found = verdict(OLD_DRIVER)
    assert found.refusal is None
    assert "unknown" in found.warnings[0]
    nothing = verdict()
    assert nothing.refusal is None
    assert "not known" in nothing.warnings[0]


def test_volta_passes_with_a_warning():
    found = verdict(V100)
    assert found.refusal is None
    assert "CUDA 13" in found.warnings[0]


def test_amds_cards_have_no_compute_capability_to_check():
    engine = EngineSpec(name="e0", model="acme/fox")
    amd = GpuCard(index=0, vendor="amd", name="AMD Instinct MI300X", memory_mib=196592)
    found = preflight(engine, {}, assign_gpus(engine, {}, GpuSurvey(cards=(amd,))), 100 * GIB)
    assert (found.refusal, found.warnings) == (None, ())


def test_who_knows_better_says_so_in_node_yaml():
    assert verdict(P40, gpu_compute_capability="7.0").refusal is None
    assert verdict(GB10, gpu_memory_mib=20_000, weights_bytes=30 * GIB).refusal is not None


@pytest.mark.parametrize(
    ("recorded", "weights_gib", "spec", "fits"),
    [
        pytest.param(L4, 15, {}, True, id="8B in 16 bits on 24 GB"),
        pytest.param(L4, 28, {}, False, id="14B on 24 GB"),
        pytest.param(L4, 28, {"tensor_parallel_size": 2}, True, id="on two of them"),
        pytest.param(L4, 28, {"args": ("--pipeline-parallel-size", "2")}, True, id="in two stages"),
        pytest.param(L4, 28, {"args": ("-dp", "2")}, False, id="copies take no less"),
        pytest.param(
            L4, 28, {"args": ("-dp=2", "--enable-expert-parallel")}, True, id="spread experts"
        ),
        pytest.param(L4, 20.5, {}, True, id="just below 0.92"),
        pytest.param(
            L4, 20.5, {"args": ("--gpu-memory-utilization", "0.9")}, False, id="the share is read"
        ),
        pytest.param(
            L4, 20.5, {"args": ("--gpu_memory_utilization=0.9",)}, False, id="and the other form"
        ),
        pytest.param(
            L4, 15, {"args": ("--gpu-memory-utilization", "much")}, True, id="vLLM will say it"
        ),
        pytest.param(L4, 28, {"args": ("--cpu-offload-gb", "10")}, True, id="partly on the CPU"),
        pytest.param(L4, 28, {"args": ("--quantization", "fp8")}, True, id="quantized at load"),
        pytest.param(L4, 28, {"args": ("--load-format=dummy",)}, True, id="no weights are read"),
        pytest.param(MIG_A100, 30, {}, True, id="in a slice of 40 GB"),
        pytest.param(MIG_A100, 30, {"gpus": ("MIG-1000",)}, False, id="not in one of 10 GB"),
    ],
)
def test_room_for_the_weights(recorded, weights_gib, spec, fits):
    second = {**recorded, "UUID": "GPU-2"}
    found = verdict(recorded, second, weights_bytes=int(weights_gib * GIB), **spec)
    assert (found.refusal is None) is fits
    if not fits:
        assert "MiB" in found.refusal
        assert "tensor_parallel_size" in found.refusal


@pytest.mark.case("F1")
def test_f1_memory_that_is_unknown_refuses_nothing():
    found = verdict(GB10, weights_bytes=500 * GIB)
    assert found.refusal is None
    assert "memory is unknown" in found.warnings[0]


def test_a_lost_card_is_refused():
    found = verdict({"lost": True}, h100(1), gpus=(0,))
    assert "GPU 0 (unknown) is lost (GPU is lost)" in found.refusal


def test_a_card_that_is_not_there_is_refused():
    found = verdict(h100(), gpus=(0, 4), tensor_parallel_size=2)
    assert "gpus: 4 is not on this host, whose driver shows 1" in found.refusal
    assert "wattmesh gpu" in found.refusal
