"""`wattmesh gpu` with recorded drivers, and on a host without any."""

import json

import pytest
import yaml

from control_plane.cli.app import run_app
from control_plane.cli.gpu import print_gpus
from control_plane.cli.output import Output
from engines.gpu import load_gpu_table
from engines.gpu_probe import GpuProbe
from tests.support.recorded_nvml import GB10, LAPTOP, MIG_A100, RecordedNvml, h100, no_tool

TABLE = load_gpu_table()


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")

    def run_command(*cards, output=Output.TABLE, absent=None):
        survey = GpuProbe(RecordedNvml(*cards, absent=absent), no_tool).survey()
        status = print_gpus(survey, TABLE, output)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run_command


def test_a_card_and_what_follows(run):
    status, out, err = run(h100(), output=Output.JSON)
    assert (status, err) == (0, "")
    (gpu,) = json.loads(out)["gpus"]
    assert (gpu["name"], gpu["model"]) == ("NVIDIA H100 80GB HBM3", "H100-SXM")
    assert (gpu["compute_capability"], gpu["memory_mib"]) == ("9.0", 81559)
    assert (gpu["power_limit_w"], gpu["power_limit_source"]) == (700, "enforced")
    assert (gpu["prefill_cap_factor"], gpu["decode_cap_factor"]) == (1, 1)
    assert gpu["prefill_tokens_per_s"] == pytest.approx(989e12 * 0.5 / 16e9, rel=1e-4)
    assert 164 < gpu["gpu_power"] < 317  # between its bandwidth's and its compute's ratio to A100
    assert gpu["throttle_reasons"] == ["idle"]


def test_a_cap_takes_much_of_prefill_and_little_of_decode(run):
    _, out, _ = run(h100(), h100(1, EnforcedPowerLimit=400_000), output=Output.JSON)
    free, capped = json.loads(out)["gpus"]
    assert capped["power_limit_w"] == 400
    assert capped["prefill_cap_factor"] == pytest.approx((400 / 700) ** 0.91, abs=1e-3)
    assert capped["decode_cap_factor"] == pytest.approx((400 / 700) ** 0.11, abs=1e-3)
    assert capped["gpu_power"] < free["gpu_power"]


def test_the_table_names_cap_clock_and_throttling(run):
    status, out, _ = run(
        h100(EnforcedPowerLimit=400_000, CurrentClocksEventReasons=0x44, ClockInfoSm=1200)
    )
    assert status == 0
    line = " ".join(out.splitlines()[1].split())
    assert "NVIDIA H100 80GB HBM3 H100-SXM 81559 MiB 9.0 400 of 700 W 1200 of 1980 MHz" in line
    assert "power cap, hardware thermal slowdown" in line


def test_mig_devices_have_rows_and_capacities_of_their_own(run):
    _, out, _ = run(MIG_A100)
    assert "0.1  NVIDIA A100-SXM4-80GB MIG 1g.10gb" in out
    _, out, _ = run(MIG_A100, output=Output.YAML)
    (gpu,) = yaml.safe_load(out)["gpus"]
    large, small = gpu["mig_devices"]
    assert gpu["gpu_power"] > large["gpu_power"] > small["gpu_power"] > 0
    assert (large["memory_mib"], small["memory_mib"]) == (40192, 9728)


@pytest.mark.case("F1")
def test_f1_what_is_unknown_says_so(run):
    status, out, err = run(GB10, LAPTOP)
    assert status == 0
    gb10, laptop = out.splitlines()[1:]
    assert "unknown" in gb10
    assert "140 W" in gb10
    assert "115 of 80 W" in laptop
    assert "not in the GPU table" in err
    assert "Laptop" in err
    _, out, _ = run(GB10, output=Output.JSON)
    (gpu,) = json.loads(out)["gpus"]
    assert (gpu["memory_mib"], gpu["power_limit_source"]) == (None, "table")


def test_a_lost_card_is_a_finding(run):
    status, out, err = run(h100(), {"lost": True})
    assert status == 1
    assert "NVIDIA H100" in out
    assert "GPU 1 is lost (GPU is lost)" in err
    status, out, _ = run({"lost": True}, output=Output.JSON)
    assert status == 1
    assert json.loads(out)["gpus"][0]["lost"] == "GPU is lost"


@pytest.mark.case("F1")
def test_f1_a_host_without_a_gpu_is_told_why(run):
    status, out, err = run(absent="NVML Shared Library Not Found")
    assert (status, err) == (0, "")
    assert out.startswith("no GPU found on this host\n")
    assert "NVIDIA: NVML Shared Library Not Found" in out
    assert "amd-smi" in out
    status, out, _ = run(absent="NVML Shared Library Not Found", output=Output.JSON)
    value = json.loads(out)
    assert (status, value["gpus"]) == (0, [])
    assert "NVML Shared Library Not Found" in value["reasons"][0]


def test_the_command_answers_on_this_host_whatever_it_has(capsys):
    status = run_app(["gpu", "-o", "json"])
    value = json.loads(capsys.readouterr().out)
    assert status == (1 if any(gpu["lost"] for gpu in value["gpus"]) else 0)
    assert value["gpus"] or value["reasons"]


def test_help_has_an_example(capsys):
    assert run_app(["gpu", "--help"]) == 0
    assert "Example: wattmesh gpu" in " ".join(capsys.readouterr().out.split())
