"""The batch of a simulated engine: at most max_num_seqs run at once, others wait in turn."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator

from engines.simulator.metrics import EngineMetrics
from engines.simulator.service_model import ServiceModel

_TEXT = """the a one this that river stone light field cloud tree road wind rain hill bird runs
stands falls moves turns opens closes shines grows rests slowly quietly brightly near beyond under
over with without and then while"""
_WORDS = _TEXT.split()


class Batch:
    """Sequences that are decoded together. Used from one event loop."""

    def __init__(self, model: ServiceModel, metrics: EngineMetrics, max_num_seqs: int) -> None:
        self._model = model
        self._metrics = metrics
        self._slots = asyncio.Semaphore(max_num_seqs)  # wakes waiters in the order they came
        self._running = 0
        self._tokens = 0

    async def generate(
        self, *, prompt_tokens: int, max_tokens: int, seed: int
    ) -> AsyncGenerator[str, None]:
        """Yield one word per token, each when the batch has it. Leaving early frees the slot."""
        arrived = time.monotonic()
        await self._wait_for_a_slot()
        self._running += 1
        held = 0
        finished = "abort"
        self._metrics.running.inc()
        try:
            held = self._hold(prompt_tokens)
            await asyncio.sleep(self._model.prefill_s(prompt_tokens))
            self._metrics.prompt_tokens.inc(prompt_tokens)
            self._metrics.time_to_first_token.observe(time.monotonic() - arrived)
            choose = random.Random(seed).choice  # noqa: S311 harmless text, the same every time
            for index in range(max_tokens):
                if index:
                    step_s = self._model.decode_step_s(self._running)
                    await asyncio.sleep(step_s)
                    self._metrics.inter_token_latency.observe(step_s)
                held += self._hold(1)
                self._metrics.generation_tokens.inc()
                yield choose(_WORDS) + " "
            finished = "length"
        finally:
            self._hold(-held)
            self._running -= 1
            self._metrics.running.dec()
            self._slots.release()
            self._metrics.finished(finished)
            self._metrics.e2e_latency.observe(time.monotonic() - arrived)

    async def _wait_for_a_slot(self) -> None:
        """Return with a slot held. A caller that gives up before is counted, like any abort."""
        with self._metrics.waiting.track_inprogress():
            try:
                await self._slots.acquire()
            except asyncio.CancelledError:
                self._metrics.finished("abort")
                raise

    def _hold(self, tokens: int) -> int:
        self._tokens += tokens
        self._metrics.kv_cache_usage.set(min(1.0, self._tokens / self._model.kv_cache_tokens))
        return tokens
