"""Surveys a host's cards again and again, from a thread of its own.

NVML may block for ever when a card falls off the bus. A daemon thread keeps that away from the
event loop, and from the end of the process, which waits for no such thread.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable

import structlog

from engines.gpu_facts import GpuSurvey, remember

logger = structlog.get_logger()

_PERIOD_S = 5.0
_PERIOD_WITHOUT_CARDS_S = 60.0  # a driver may be installed later


class GpuWatch:
    """The last survey of a host's cards, and whoever wants to hear of a new one."""

    def __init__(self, survey: Callable[[], GpuSurvey], *, period_s: float = _PERIOD_S) -> None:
        self.survey: GpuSurvey | None = None  # None = not known yet
        self.unexpected_errors = 0
        self._ask = survey
        self._period_s = period_s
        self._first = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call this, in the event loop, whenever a survey differs from the one before."""
        self._listeners.append(listener)

    async def wait_first(self, within_s: float) -> None:
        """Wait for the first survey; after this time the cards count as unknown for now."""
        waiting = asyncio.ensure_future(self._first.wait())
        done, _ = await asyncio.wait([waiting], timeout=within_s)
        waiting.cancel()
        if not done:
            logger.warning("GPUs not known yet, engines start without", waited_s=within_s)

    async def run(self) -> None:
        """Keep surveying until cancelled."""
        stop = threading.Event()
        loop = asyncio.get_running_loop()
        thread = threading.Thread(
            target=self._survey_on, args=(loop, stop), name="gpu-survey", daemon=True
        )
        thread.start()
        try:
            await asyncio.Event().wait()
        finally:
            stop.set()

    def _survey_on(self, loop: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
        while not stop.is_set():
            found: GpuSurvey | None = None
            try:
                found = self._ask()
            except Exception:  # engines outlive whatever a driver's binding may raise
                self.unexpected_errors += 1
                logger.exception("GPUs not surveyed", errors=self.unexpected_errors)
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                if found is not None and not stop.is_set():
                    loop.call_soon_threadsafe(self._publish, found)
            known = found if self.survey is None else self.survey
            hopeless = known is not None and not known.cards
            stop.wait(max(self._period_s, _PERIOD_WITHOUT_CARDS_S) if hopeless else self._period_s)

    def _publish(self, found: GpuSurvey) -> None:
        before, now = self.survey, remember(self.survey, found)
        self.survey = now
        self._tell(before, now)
        self._first.set()
        if now != before:
            for listener in self._listeners:
                listener()

    def _tell(self, before: GpuSurvey | None, now: GpuSurvey) -> None:
        """Log what changed for the operator: cards that come, are lost and are back."""
        if before is None:
            names = [card.name or "unknown" for card in now.cards]
            reasons = [] if now.cards else list(now.reasons)
            logger.info("GPUs of this host", names=names, reasons=reasons)
        earlier = {(card.vendor, card.index): card for card in before.cards} if before else {}
        for card in now.cards:
            last = earlier.get((card.vendor, card.index))
            was_lost = None if last is None else last.lost
            if card.lost is not None and was_lost is None:
                logger.error("GPU lost", gpu=card.index, name=card.name, reason=card.lost)
            elif card.lost is None and was_lost is not None:
                logger.info("GPU back", gpu=card.index, name=card.name)
