"""The batch of a simulated engine on the clock: one timer a step, and callers woken by its end.

Steps follow each other by their planned ends, not by when the timer fired: how late this process
is woken does not add up. A process that was held up for longer does not make up for it.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator

from engines.simulator.metrics import EngineMetrics
from engines.simulator.schedule import Schedule, Sequence, StepEnd

_MAX_LAG_S = 0.1  # what is made up for


class Batch:
    """Sequences that are prefilled and decoded together. Used from one event loop."""

    def __init__(self, schedule: Schedule, metrics: EngineMetrics) -> None:
        self._schedule = schedule
        self._metrics = metrics
        self._waiters: dict[Sequence, tuple[int, asyncio.Future[None]]] = {}
        self._steps = False  # whether a step runs

    @contextlib.contextmanager
    def sequence(self, *, prompt_tokens: int, max_tokens: int) -> Iterator[Sequence]:
        """Have a sequence made while entered. Leaving before its end frees its slot."""
        sequence = Sequence(prompt_tokens, max_tokens, arrived_s=time.monotonic())
        self._schedule.add(sequence)
        if not self._steps:
            self._begin(sequence.arrived_s)
        self._show()
        try:
            yield sequence
        finally:
            self._waiters.pop(sequence, None)
            if not sequence.ended:
                self._schedule.remove(sequence)
                self._metrics.note_abort()
                self._show()

    async def until(self, sequence: Sequence, made: int) -> None:
        """Return once a sequence has so many tokens, of at most its max_tokens."""
        if sequence.made < made:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[sequence] = made, waiter
            await waiter

    def _begin(self, now_s: float) -> None:
        took_s = self._schedule.begin(now_s)
        self._steps = took_s is not None
        if took_s is not None:
            ends_s = now_s + took_s
            delay_s = max(0.0, ends_s - time.monotonic())
            asyncio.get_running_loop().call_later(delay_s, self._end, ends_s)

    def _end(self, planned_s: float) -> None:
        now_s = time.monotonic()
        ended_s = planned_s if now_s - planned_s < _MAX_LAG_S else now_s
        step = self._schedule.end(ended_s)
        self._metrics.note_step(step, ended_s)
        self._wake(step)
        self._begin(ended_s)
        self._show()

    def _wake(self, step: StepEnd) -> None:
        for sequence in (*step.started, *step.continued):
            wanted, waiter = self._waiters.get(sequence, (0, None))
            if waiter is not None and sequence.made >= wanted:
                del self._waiters[sequence]
                if not waiter.done():  # else its caller went away in this very moment
                    waiter.set_result(None)

    def _show(self) -> None:
        schedule = self._schedule
        self._metrics.show(schedule.running, schedule.waiting, schedule.kv_cache_usage)
