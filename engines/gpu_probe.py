"""Asks a host's drivers about its cards: NVIDIA's by NVML, AMD's by the tools on PATH.

Every call blocks and may take seconds (a card that falls off the bus makes NVML hang), so callers
in an event loop ask from a thread. Each question may fail by itself; then its answer is unknown.
A host without a driver has no cards and a reason, and that is no error.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from control_plane.errors import WattmeshError
from engines.gpu_amd import ToolOutputError, parse_amd_smi, parse_rocm_smi
from engines.gpu_facts import GpuCard, GpuSurvey, NvmlReading, card_of_nvml

_TOOL_TIMEOUT_S = 20.0
_AMD_PERIOD_S = 30.0  # amd-smi takes a second of a core; what NVML tells costs microseconds
_SM, _MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_ROCM_SMI = (
    *("rocm-smi", "--showproductname", "--showuniqueid", "--showmeminfo", "vram"),
    *("--showmaxpower", "--showclocks", "--json"),
)


class NvmlError(WattmeshError):
    """NVML did not answer a question: mostly "Not Supported"."""


class NvmlAbsentError(NvmlError):
    """There is no NVML to ask: no library, no driver, or two that do not fit."""


class CardLostError(NvmlError):
    """The card does not answer any more: it fell off the bus, or must be reset."""


class ToolError(WattmeshError):
    """A tool that is there could not be run, or took too long."""


class Nvml(Protocol):
    """The seam to NVML. Tests put recorded answers in its place."""

    def ask(self, function: str, *arguments: object) -> Any:
        """Call one function of NVML by its name. Raise NvmlError."""


class PyNvml:
    """NVML as NVIDIA's own binding gives it."""

    def ask(self, function: str, *arguments: object) -> Any:
        """Call one function of NVML by its name. Raise NvmlError."""
        import pynvml  # noqa: PLC0415 a large module that most hosts of the mesh never need

        absent = {
            pynvml.NVML_ERROR_UNINITIALIZED,
            pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        }
        lost = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED}
        try:
            return getattr(pynvml, function)(*arguments)
        except pynvml.NVMLError as error:
            if error.value in absent:
                raise NvmlAbsentError(str(error)) from error
            if error.value in lost:
                raise CardLostError(str(error)) from error
            raise NvmlError(str(error)) from error
        except UnicodeDecodeError as error:  # the binding decodes names, and not all are text
            raise NvmlError(str(error)) from error


RunTool = Callable[..., str | None]


def run_tool(*argv: str) -> str | None:
    """Return what a tool prints; None where it is not on PATH. Raise ToolError."""
    path = shutil.which(argv[0])
    if path is None:
        return None
    try:
        ran = subprocess.run(
            (path, *argv[1:]),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_TOOL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{argv[0]} did not answer: {error}") from error
    if ran.returncode and not ran.stdout.strip():
        text = ran.stderr.decode(errors="replace").strip()
        raise ToolError(f"{argv[0]} ended with {ran.returncode}: {text[-200:]}")
    return ran.stdout.decode(errors="replace")


class GpuProbe:
    """Surveys the cards of this host, again and again. Not for two threads at once."""

    def __init__(self, nvml: Nvml | None = None, run: RunTool = run_tool) -> None:
        self._nvml = nvml or PyNvml()
        self._run = run
        self._open = False
        self._amd: tuple[float, tuple[GpuCard, ...], str | None] | None = None

    def survey(self) -> GpuSurvey:
        """Return all cards, and why there are none of a kind. Blocks; raises nothing of its own."""
        nvidia, no_nvidia = self._nvidia()
        amd, no_amd = self._amd_cards()
        reasons = tuple(reason for reason in (no_nvidia, no_amd) if reason is not None)
        return GpuSurvey(cards=(*nvidia, *amd), reasons=reasons)

    def _nvidia(self) -> tuple[tuple[GpuCard, ...], str | None]:
        try:
            if not self._open:  # kept open: opening it takes longer than all questions together
                self._nvml.ask("nvmlInit")
                self._open = True
            count = int(self._nvml.ask("nvmlDeviceGetCount"))
            cards = tuple(self._card(index) for index in range(count))
        except NvmlError as error:
            self._open = False
            hint = "no driver on this host, or not passed into this container"
            return (), f"NVIDIA: {error} ({hint})"
        return cards, None if cards else "NVIDIA: the driver shows no card"

    def _card(self, index: int) -> GpuCard:
        try:
            handle = self._nvml.ask("nvmlDeviceGetHandleByIndex", index)
            return card_of_nvml(index, self._read(handle))
        except NvmlAbsentError:
            raise
        except NvmlError as error:  # lost, or no handle at all: told, and no reason to lose others
            return GpuCard(index=index, vendor="nvidia", lost=str(error))

    def _read(self, handle: Any) -> NvmlReading:
        """Return all answers about one device. Raise CardLostError."""
        memory = self._try("nvmlDeviceGetMemoryInfo", handle)
        capability = self._try("nvmlDeviceGetCudaComputeCapability", handle)
        mode = self._try("nvmlDeviceGetMigMode", handle)
        reasons = self._try("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # drivers before 535 know the old name only
            reasons = self._try("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        mig_mode = None if mode is None else int(mode[0])
        return NvmlReading(
            name=self._try("nvmlDeviceGetName", handle),
            uuid=self._try("nvmlDeviceGetUUID", handle),
            memory_bytes=None if memory is None else int(memory.total),
            compute_capability=None if capability is None else (capability[0], capability[1]),
            enforced_limit_mw=self._try("nvmlDeviceGetEnforcedPowerLimit", handle),
            management_limit_mw=self._try("nvmlDeviceGetPowerManagementLimit", handle),
            default_limit_mw=self._try("nvmlDeviceGetPowerManagementDefaultLimit", handle),
            sm_clock_mhz=self._try("nvmlDeviceGetClockInfo", handle, _SM),
            sm_clock_max_mhz=self._try("nvmlDeviceGetMaxClockInfo", handle, _SM),
            memory_clock_mhz=self._try("nvmlDeviceGetClockInfo", handle, _MEMORY),
            memory_clock_max_mhz=self._try("nvmlDeviceGetMaxClockInfo", handle, _MEMORY),
            event_reasons=reasons,
            energy_mj=self._try("nvmlDeviceGetTotalEnergyConsumption", handle),
            mig_mode=mig_mode,
            mig=tuple(self._mig(handle)) if mig_mode == 1 else (),
        )

    def _mig(self, handle: Any) -> Iterator[NvmlReading]:
        for position in range(self._try("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            device = self._try("nvmlDeviceGetMigDeviceHandleByIndex", handle, position)
            if device is None:
                continue
            memory = self._try("nvmlDeviceGetMemoryInfo", device)
            yield NvmlReading(
                name=self._try("nvmlDeviceGetName", device),
                uuid=self._try("nvmlDeviceGetUUID", device),
                memory_bytes=None if memory is None else int(memory.total),
            )

    def _try(self, function: str, *arguments: object) -> Any:
        """Return an answer, or None where the driver has none. A lost card is no missing answer."""
        try:
            return self._nvml.ask(function, *arguments)
        except (NvmlAbsentError, CardLostError):
            raise
        except NvmlError:
            return None

    def _amd_cards(self) -> tuple[tuple[GpuCard, ...], str | None]:
        now = time.monotonic()
        if self._amd is None or now - self._amd[0] >= _AMD_PERIOD_S:
            self._amd = (now, *self._ask_amd())
        return self._amd[1:]

    def _ask_amd(self) -> tuple[tuple[GpuCard, ...], str | None]:
        failed: list[str] = []
        for ask in (self._amd_smi, self._rocm_smi):
            try:
                cards = ask()
            except (ToolError, ToolOutputError) as error:
                failed.append(str(error))
                continue
            if cards is not None:
                return cards, None if cards else "AMD: the driver shows no card"
        return (), "AMD: " + ("; ".join(failed) or "neither amd-smi nor rocm-smi is on PATH")

    def _amd_smi(self) -> tuple[GpuCard, ...] | None:
        static = self._run("amd-smi", "static", "--json")
        if static is None:
            return None
        try:
            metric = self._run("amd-smi", "metric", "--json")
        except ToolError:
            metric = None
        return parse_amd_smi(static, metric)

    def _rocm_smi(self) -> tuple[GpuCard, ...] | None:
        text = self._run(*_ROCM_SMI)
        return None if text is None else parse_rocm_smi(text)
