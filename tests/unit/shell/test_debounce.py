"""Debouncing: a quiet time, and a cap that a restless source cannot move."""

import pytest

from control_plane.debounce import Debounce, Pending, due_at_s, note_change

DEBOUNCE = Debounce(quiet_s=0.1, cap_s=10.0)


@pytest.mark.parametrize(
    ("changes", "due_s"),
    [
        pytest.param([5.0], 5.1, id="one change waits the quiet time"),
        pytest.param([5.0, 5.05, 5.1], 5.2, id="each change starts the quiet time anew"),
        pytest.param([5.0, 14.0, 14.95], 15.0, id="the cap counts from the first change"),
        pytest.param([n / 20 for n in range(400)], 10.0, id="a source that never rests"),
    ],
)
def test_when_changes_are_published(changes: list[float], due_s: float) -> None:
    pending: Pending | None = None
    for now_s in changes:
        pending = note_change(pending, now_s)
    assert pending is not None
    assert due_at_s(pending, DEBOUNCE) == pytest.approx(due_s)
