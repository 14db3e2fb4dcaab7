"""One engine and its host's cards: what it may declare of them, and whether they can run it."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import structlog

from engines.gpu import GpuTable
from engines.gpu_assignment import Assignment, assign_gpus, with_facts
from engines.gpu_facts import GpuSurvey
from engines.gpu_watch import GpuWatch
from engines.node_config import EngineSpec
from engines.on_disk import is_vllm_for_cpu, weights_bytes
from engines.preflight import preflight

logger = structlog.get_logger()

_RETRY_S = 30.0  # weights may be completed or replaced meanwhile, which no driver tells


class EngineCards:
    """Follows the surveys of a host's cards for one engine; calls `on_news` when one came."""

    def __init__(
        self,
        engine: str,
        spec: EngineSpec,
        env: Mapping[str, str],
        watch: GpuWatch,
        table: GpuTable,
        *,
        vllm_python: str,
        on_news: Callable[[], None],
    ) -> None:
        self.refusal: str | None = None  # why the cards cannot run it; None also while unchecked
        self._runs_vllm = spec.launcher == "vllm" and not is_vllm_for_cpu(vllm_python)
        self.in_use = spec.gpus != () and (bool(spec.gpus) or self._runs_vllm)
        self._engine = engine
        self._spec = spec
        self._env = env
        self._watch = watch
        self._table = table
        self._on_news = on_news
        self._surveyed = asyncio.Event()
        watch.on_change(self._note_survey)

    def declared(self) -> EngineSpec:
        """Return the engine's spec with what is known of its cards where node.yaml is silent."""
        return with_facts(self._spec, self._assignment(), self._table)

    async def wait_until_able(self) -> None:
        """Return once nothing known stands against a start; until then tell what does.

        Asked again when a survey came, and each half minute; told only when the answer changes.
        """
        warned: tuple[str, ...] = ()
        while self.in_use and self._runs_vllm:
            self._surveyed.clear()
            model = self._spec.model_path or self._spec.model
            weights = await asyncio.to_thread(weights_bytes, model)  # may be a slow network disk
            verdict = preflight(self._spec, self._env, self._assignment(), weights)
            if verdict.warnings != warned:
                warned = verdict.warnings
                logger.warning("not all checked before the start", engine=self._engine, what=warned)
            if verdict.refusal != self.refusal:
                self._note_refusal(verdict.refusal)
            if verdict.refusal is None:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S):
                    await self._surveyed.wait()

    def _assignment(self) -> Assignment:
        if not self.in_use:
            return Assignment()
        return assign_gpus(self._spec, self._env, self._watch.survey or GpuSurvey())

    def _note_refusal(self, refusal: str | None) -> None:
        self.refusal = refusal
        if refusal is not None:
            logger.error("not started, waiting for a change", engine=self._engine, reason=refusal)
        self._on_news()

    def _note_survey(self) -> None:
        self._surveyed.set()
        self._on_news()
