"""Which engines the policy lets serve a model, by their GPUs.

A named list of GPUs is a promise, so an engine whose GPU is unknown is not in it. A least compute
capability guards against cards that are too old, and an unreadable one is no sign of age: such an
engine serves, and is reported.
"""

from dataclasses import replace

from control_plane.errors import Problem
from control_plane.fleet import Engine, EngineState
from control_plane.policy import Requirements
from engines.compute_capability import show_compute_capability

_EXCLUDED = "the engine gets no traffic of this model"


def admit(engine: Engine, requires: Requirements) -> tuple[Engine, tuple[Problem, ...]]:
    """Return the engine, marked EXCLUDED when the policy does not admit its GPU, and why."""
    problems: list[Problem] = []
    excluded = False
    if requires.gpu_models and not _is_named(engine, requires):
        excluded = True
        expected = f"one of {', '.join(requires.gpu_models)}, as the policy requires"
        problems.append(_problem(engine, "gpu_model", engine.gpu, expected, _EXCLUDED))
    least = requires.min_compute_capability
    if least is not None:
        found = engine.compute_capability
        shown = None if found is None else show_compute_capability(found)
        expected = f"at least {show_compute_capability(least)}, as the policy requires"
        if found is None:
            meanwhile = "it is unknown, which is not too old: the engine serves"
            problems.append(_problem(engine, "gpu_compute_capability", shown, expected, meanwhile))
        elif found < least:
            excluded = True
            problems.append(_problem(engine, "gpu_compute_capability", shown, expected, _EXCLUDED))
    admitted = replace(engine, state=EngineState.EXCLUDED) if excluded else engine
    return admitted, tuple(problems)


def _is_named(engine: Engine, requires: Requirements) -> bool:
    names = {name.casefold() for name in requires.gpu_models}
    return engine.gpu is not None and engine.gpu.casefold() in names


def _problem(engine: Engine, key: str, value: str | None, expected: str, meanwhile: str) -> Problem:
    return Problem(
        source="catalog",
        path=f"{engine.id}.{key}",
        value="unknown" if value is None else repr(value),
        expected=expected,
        meanwhile=meanwhile,
    )
