"""NVML's answers as they were recorded on real cards, in the place of the library."""

from types import SimpleNamespace
from typing import Any

from engines.gpu_probe import CardLostError, NvmlAbsentError, NvmlError

LOST = object()  # in the place of an answer: the card is lost
_SM, _MEMORY = 1, 2


class RecordedNvml:
    """One card per mapping of answers; what a mapping does not hold is "Not Supported".

    A handle is the card's index, or "index.mig" of a MIG device.
    """

    def __init__(self, *cards: dict[str, Any], absent: str | None = None) -> None:
        self.cards = list(cards)
        self.absent = absent
        self.opened = 0
        self.asked: set[str] = set()

    def ask(self, function: str, *arguments: object) -> Any:
        self.asked.add(function)
        if self.absent is not None:
            raise NvmlAbsentError(self.absent)
        if function == "nvmlInit":
            self.opened += 1
            return None
        if function == "nvmlDeviceGetCount":
            return len(self.cards)
        if function == "nvmlDeviceGetHandleByIndex":
            return str(arguments[0])
        if function == "nvmlDeviceGetMigDeviceHandleByIndex":
            return self._mig_handle(*arguments)
        key = function.removeprefix("nvmlDeviceGet")
        if function in ("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo"):
            key += {_SM: "Sm", _MEMORY: "Mem"}[int(str(arguments[1]))]
        card = self._find(str(arguments[0]))
        if card.get("lost") or card.get(key) is LOST:
            raise CardLostError("GPU is lost")
        if key not in card:
            raise NvmlError("Not Supported")
        return card[key]

    def _mig_handle(self, handle: object, position: object) -> str:
        devices = self.cards[int(str(handle))].get("mig", {})
        if position not in devices:
            raise NvmlError("Not Found")
        return f"{handle}.{position}"

    def _find(self, handle: str) -> dict[str, Any]:
        index, _, position = handle.partition(".")
        card = self.cards[int(index)]
        return card["mig"][int(position)] if position else card


def memory(mib: int) -> SimpleNamespace:
    """Return nvmlDeviceGetMemoryInfo's answer."""
    return SimpleNamespace(total=mib * 2**20, free=0, used=0)


def h100(index: int = 0, **changed: Any) -> dict[str, Any]:
    """Return the answers of an H100 SXM at rest."""
    return {
        "Name": "NVIDIA H100 80GB HBM3",
        "UUID": f"GPU-6a1c0000-0000-0000-0000-00000000000{index}",
        "MemoryInfo": memory(81559),
        "CudaComputeCapability": (9, 0),
        "EnforcedPowerLimit": 700_000,
        "PowerManagementLimit": 700_000,
        "PowerManagementDefaultLimit": 700_000,
        "ClockInfoSm": 345,
        "MaxClockInfoSm": 1980,
        "ClockInfoMem": 2619,
        "MaxClockInfoMem": 2619,
        "CurrentClocksEventReasons": 0x1,
        "TotalEnergyConsumption": 1_234_500,
        "MigMode": [0, 0],
        **changed,
    }


LAPTOP = {  # the management limit cannot be read, the enforced one can
    "Name": b"NVIDIA GeForce RTX 4090 Laptop GPU",
    "UUID": b"GPU-1ab70000-0000-0000-0000-000000000000",
    "MemoryInfo": memory(16376),
    "CudaComputeCapability": (8, 9),
    "EnforcedPowerLimit": 115_000,
    "PowerManagementDefaultLimit": 80_000,
    "ClockInfoSm": 210,
    "MaxClockInfoSm": 3105,
    "CurrentClocksEventReasons": 0x4 | 0x20,
}
JETSON = {"Name": "Orin (nvgpu)", "UUID": "ddf70000-0000-0000-0000-000000000000"}
GB10 = {  # memory is the CPU's too: its total is not supported
    "Name": "NVIDIA GB10",
    "UUID": "GPU-9b100000-0000-0000-0000-000000000000",
    "CudaComputeCapability": (12, 1),
    "ClockInfoSm": 208,
    "MaxClockInfoSm": 3003,
    "CurrentClocksEventReasons": 0,
}
MIG_A100 = {
    "Name": "NVIDIA A100-SXM4-80GB",
    "UUID": "GPU-a1000000-0000-0000-0000-000000000000",
    "MemoryInfo": memory(81920),
    "CudaComputeCapability": (8, 0),
    "EnforcedPowerLimit": 300_000,
    "PowerManagementDefaultLimit": 400_000,
    "MigMode": [1, 1],
    "MaxMigDeviceCount": 7,
    "mig": {
        0: {
            "Name": "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
            "UUID": "MIG-30000000-0000-0000-0000-000000000000",
            "MemoryInfo": memory(40192),
        },
        2: {
            "Name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
            "UUID": "MIG-10000000-0000-0000-0000-000000000000",
            "MemoryInfo": memory(9728),
        },
    },
}


def no_tool(*_: str) -> None:
    """No AMD tool is on PATH."""
