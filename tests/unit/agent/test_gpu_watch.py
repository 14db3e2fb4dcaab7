"""Surveys from a thread: what is kept, told and never waited for."""

import asyncio
import threading
import time

from engines.gpu_facts import GpuSurvey, remember
from engines.gpu_probe import GpuProbe
from engines.gpu_watch import GpuWatch
from tests.support.eventually import eventually
from tests.support.recorded_nvml import RecordedNvml, h100, no_tool

QUICK_S = 0.02


def survey(*cards, absent=None):
    return GpuProbe(RecordedNvml(*cards, absent=absent), no_tool).survey()


async def stop(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_change_is_told_in_the_event_loop():
    nvml = RecordedNvml(h100())
    watch = GpuWatch(GpuProbe(nvml, no_tool).survey, period_s=QUICK_S)
    threads = []
    watch.on_change(lambda: threads.append(threading.current_thread()))
    task = asyncio.ensure_future(watch.run())
    await watch.wait_first(5)
    assert watch.survey.cards[0].power_enforced_w == 700
    assert len(threads) == 1
    nvml.cards[0] = h100(EnforcedPowerLimit=400_000)
    await eventually(lambda: watch.survey.cards[0].power_enforced_w == 400)
    assert set(threads) == {threading.main_thread()}
    assert len(threads) == 2  # surveys that found the same were no news
    await stop(task)


async def test_a_driver_that_hangs_holds_up_nobody():
    released = threading.Event()

    def hang():
        released.wait(30)
        return GpuSurvey()

    watch = GpuWatch(hang, period_s=QUICK_S)
    task = asyncio.ensure_future(watch.run())
    started = time.monotonic()
    await watch.wait_first(0.05)
    assert watch.survey is None
    await stop(task)
    assert time.monotonic() - started < 5  # the thread still hangs
    released.set()


async def test_a_bug_in_a_binding_is_outlived():
    answers = [RuntimeError("a bug"), survey(h100())]

    def ask():
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch = GpuWatch(ask, period_s=QUICK_S)
    task = asyncio.ensure_future(watch.run())
    await watch.wait_first(5)
    assert watch.survey.cards
    assert watch.unexpected_errors == 1
    await stop(task)


async def test_loss_and_return_are_logged_once(capfd):
    nvml = RecordedNvml(h100(0), h100(1))
    watch = GpuWatch(GpuProbe(nvml, no_tool).survey, period_s=QUICK_S)
    task = asyncio.ensure_future(watch.run())
    await watch.wait_first(5)
    nvml.cards[1] = {"lost": True}
    await eventually(lambda: watch.survey.cards[1].lost is not None)
    await asyncio.sleep(5 * QUICK_S)
    nvml.cards[1] = h100(1)
    await eventually(lambda: watch.survey.cards[1].lost is None)
    await stop(task)
    out = capfd.readouterr().out
    assert out.count("GPU lost") == 1
    assert out.count("GPU back") == 1


def test_a_lost_card_is_still_the_card_it_was():
    before, now = survey(h100(0), h100(1)), survey(h100(0), {"lost": True})
    kept = remember(before, now)
    assert kept.cards[1].name == "NVIDIA H100 80GB HBM3"
    assert (kept.cards[0].lost, kept.cards[1].lost) == (None, "GPU is lost")
    assert remember(kept, before) == before


def test_cards_whose_driver_went_away_are_lost_not_forgotten():
    before = survey(h100(0), h100(1))
    kept = remember(before, survey(absent="Driver Not Loaded"))
    assert [card.index for card in kept.cards] == [0, 1]
    assert all(card.lost and card.memory_mib == 81559 for card in kept.cards)
    assert "Driver Not Loaded" in kept.reasons[0]
    assert remember(None, survey()).cards == ()
