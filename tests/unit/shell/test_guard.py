"""The guard: which engines are in force after which reads."""

import pytest

from control_plane.catalog import Catalog, parse_catalog
from control_plane.guard import CatalogRead, GuardState, admit_catalog, pass_time
from tests.support.consul_json import consul_answer, consul_entry

HOLD_S = 60.0


def catalog(ids: str, *, status: str = "passing", power: str = "100") -> Catalog:
    entries = [consul_entry(f"n.{name}", status=status, gpu_power=power) for name in ids.split()]
    return parse_catalog(consul_answer(*entries), source="test")


def in_force(state: GuardState) -> str | None:
    if state.catalog is None:
        return None
    return " ".join(entry.engine for entry in state.catalog.entries)


Step = tuple[float, str, bool]  # at which second, which engines are read, after a reset


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([(0, "a b", False)], ["a b"], id="the first read is believed"),
        pytest.param(
            [(0, "a b", False), (1, "a", False), (2, "", False)],
            ["a b", "a", "a"],
            id="one deregistered goes at once, an emptied catalog is held",
        ),
        pytest.param(
            [(0, "a b", False), (1, "a", True), (2, "a", False), (61.1, "a", False)],
            ["a b", "a b", "a b", "a"],
            id="missing after a reset: held until the time passes, whatever is read meanwhile",
        ),
        pytest.param(
            [(0, "a b", False), (1, "", True), (2, "a", False), (3, "a b", False), (4, "b", False)],
            ["a b", "a b", "a b", "a b", "b"],
            id="they come back one by one, and leave normally afterwards",
        ),
        pytest.param(
            [(0, "a", False), (1, "", False), (50, "", True), (61.1, "", False)],
            ["a", "a", "a", ""],
            id="a second loss does not make the hold longer",
        ),
        pytest.param(
            [(0, "a", False), (1, "a b", True), (2, "b", False)],
            ["a", "a b", "b"],
            id="a reset that lacks nothing holds nothing",
        ),
        pytest.param(
            [(0, "", False), (1, "", False), (60.1, "", False)],
            [None, None, ""],
            id="D7 c: empty at first sight is no catalog until the time passes",
        ),
        pytest.param(
            [(0, "", False), (1, "a", False), (2, "", False)],
            [None, "a", "a"],
            id="D7 c: empty at first sight, then an engine is the second proof",
        ),
    ],
)
@pytest.mark.case("D7")
@pytest.mark.conformance("consul-7")
@pytest.mark.conformance("consul-17")
def test_consul_7_17_what_is_in_force(steps: list[Step], expected: list[str | None]) -> None:
    state, seen = GuardState(), []
    for now_s, ids, reset in steps:
        read = CatalogRead(catalog=catalog(ids), reset=reset)
        state = admit_catalog(state, read, now_s, hold_s=HOLD_S)
        seen.append(in_force(state))
    assert seen == expected


def test_time_alone_releases_what_is_held() -> None:
    state = admit_catalog(GuardState(), CatalogRead(catalog=catalog("a b")), 0, hold_s=HOLD_S)
    state = admit_catalog(state, CatalogRead(catalog=catalog("")), 10, hold_s=HOLD_S)
    assert state.release_at_s == 70
    assert in_force(pass_time(state, 69.9)) == "a b"
    released = pass_time(state, 70)
    assert (in_force(released), released.release_at_s) == ("", None)


def test_an_engine_that_was_down_is_not_held() -> None:
    down = CatalogRead(catalog=catalog("a", status="critical"))
    state = admit_catalog(GuardState(), down, 0, hold_s=HOLD_S)
    state = admit_catalog(state, CatalogRead(catalog=catalog("")), 1, hold_s=HOLD_S)
    assert in_force(state) == ""


def test_an_engine_that_comes_back_changed_is_taken_as_it_is_now() -> None:
    state = admit_catalog(GuardState(), CatalogRead(catalog=catalog("a")), 0, hold_s=HOLD_S)
    state = admit_catalog(state, CatalogRead(catalog=catalog("")), 1, hold_s=HOLD_S)
    back = CatalogRead(catalog=catalog("a", power="300"))
    state = admit_catalog(state, back, 2, hold_s=HOLD_S)
    assert state.catalog == back.catalog


def test_the_given_state_is_left_as_it_was() -> None:
    state = admit_catalog(GuardState(), CatalogRead(catalog=catalog("a")), 0, hold_s=HOLD_S)
    before = (state.seen, dict(state.held), state.empty_until_s)
    admit_catalog(state, CatalogRead(catalog=catalog("")), 1, hold_s=HOLD_S)
    assert (state.seen, dict(state.held), state.empty_until_s) == before
