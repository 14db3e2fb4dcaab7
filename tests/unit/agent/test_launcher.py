"""The command lines of engines."""

import dataclasses

import pytest

from engines.launcher import engine_command
from engines.node_config import parse_node
from engines.sockets import ENGINE_UMASK

NODE = b"""
node: node-a
address: 10.0.0.1
mesh_port: 10443
engine_keep_alive: 8s
engines:
  - name: real
    model: acme/fox
    model_path: /models/fox
    max_num_seqs: 16
    max_model_len: 1024
    tensor_parallel_size: 2
    args: [--enforce-eager]
    env: {HF_HUB_OFFLINE: "1"}
  - name: fake
    model: acme/fox
    launcher: simulated
    gpu_model: NVIDIA L4
    gpu_power: 24.5
    args: [--speedup, "2"]
"""
CONFIG = parse_node(NODE, source="node.yaml")
REAL, FAKE = CONFIG.engines


def option(command, name):
    return command.argv[command.argv.index(name) + 1]


def test_vllm():
    command = engine_command(CONFIG, REAL, vllm_python="/opt/vllm/bin/python")
    assert command.argv[0] == "/opt/vllm/bin/python"
    assert option(command, "--uds") == "/run/wattmesh/real.sock"
    assert option(command, "--model") == "/models/fox"
    assert option(command, "--served-model-name") == "acme/fox"
    assert option(command, "--max-num-seqs") == "16"
    assert option(command, "--tensor-parallel-size") == "2"
    assert command.argv[-1] == "--enforce-eager"
    assert not {"--host", "--port"} & set(command.argv)
    assert command.umask == ENGINE_UMASK


def test_vllm_logs_no_prompt_and_always_reports_usage():
    argv = engine_command(CONFIG, REAL, vllm_python="python").argv
    required = {
        "--no-enable-log-requests",
        "--disable-uvicorn-access-log",
        "--enable-force-include-usage",
    }
    assert required <= set(argv)


@pytest.mark.case("B1")
def test_b1_the_keep_alive_is_the_one_setting():
    real = engine_command(CONFIG, REAL, vllm_python="python")
    assert real.env["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] == "8"
    fake = engine_command(CONFIG, FAKE, vllm_python="python")
    assert option(fake, "--keep-alive") == "8"
    assert CONFIG.metadata(REAL, "ready").keep_alive_s == 8


def test_the_environment_is_ours_and_the_engines():
    command = engine_command(CONFIG, REAL, vllm_python="python")
    assert command.env["HF_HUB_OFFLINE"] == "1"
    assert command.env["VLLM_NO_USAGE_STATS"] == "1"
    assert "PATH" in command.env


@pytest.mark.parametrize(
    ("gpus", "visible"),
    [((2, 0), "2,0"), (("GPU-6a1c0000",), "GPU-6a1c0000"), ((), "")],
)
@pytest.mark.parametrize("engine", [REAL, FAKE], ids=["vllm", "simulated"])
def test_cards_are_given_by_the_drivers_count(monkeypatch, engine, gpus, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "7")
    given = dataclasses.replace(engine, gpus=gpus)
    env = engine_command(CONFIG, given, vllm_python="python").env
    assert env["CUDA_VISIBLE_DEVICES"] == visible
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "HIP_VISIBLE_DEVICES" not in env


def test_without_gpus_the_environment_says_which_cards(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    env = engine_command(CONFIG, REAL, vllm_python="python").env
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("7", "PCI_BUS_ID")
    other = dataclasses.replace(REAL, env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    env = engine_command(CONFIG, other, vllm_python="python").env
    assert env["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_simulated():
    argv = engine_command(CONFIG, FAKE, vllm_python="python").argv
    assert argv[1:3] == ("-m", "engines.simulator")
    assert argv[argv.index("--gpu") + 1] == "NVIDIA L4"
    assert argv[argv.index("--gpu-power") + 1] == "24.5"
    assert argv[-2:] == ("--speedup", "2")


def test_without_a_path_vllm_takes_the_models_name():
    engine = dataclasses.replace(REAL, model_path=None)
    command = engine_command(CONFIG, engine, vllm_python="python")
    assert option(command, "--model") == "acme/fox"
