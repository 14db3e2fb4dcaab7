"""The balancers' figures as a table and as a picture: ratios to the reference of the same trace."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

REFERENCE = "LEAST_REQUEST, weight = capacity"
YARDSTICK = "shortest expected delay (computed)"

_TIMES = ("mean_s", "p50_s", "p99_s")
_WIDEST = 2.0  # of a bar

Rounds = Sequence[Mapping[str, float]]
Found = Mapping[str, Mapping[str, Rounds]]  # by load and balancer


def table(found: Found, missing: Mapping[str, str]) -> str:
    """Return the medians of all rounds, one row a balancer; what is missing says why.

    Mean, p50 and p99 are ratios to the reference on the same trace; goodput is a share of all
    requests. A row that did not keep up says how many of its requests never ended.
    """
    lines = [f"{'mean p50 p99 (x the reference), goodput':42}" + "".join(f"{k:>34}" for k in found)]
    for name in _names(found):
        cells = [_cell(row[name], row[REFERENCE]) for row in found.values()]
        lines.append(f"{name:42}" + "".join(f"{cell:>34}" for cell in cells))
    lines += [f"{name:42}{why:>34}" for name, why in missing.items()]
    base = [_absolute(row[REFERENCE]) for row in found.values()]
    lines.append(f"{'the reference, ms':42}" + "".join(f"{cell:>34}" for cell in base))
    return "\n".join(lines)


def ratios(own: Rounds, base: Rounds) -> dict[str, float]:
    """Return the medians, over the rounds, of the ratios to the reference on the same trace."""
    return {
        key: statistics.median(o[key] / b[key] for o, b in zip(own, base, strict=True))
        for key in _TIMES
    }


def draw(found: Found, path: Path) -> str:
    """Write the picture; return its path, or why there is none."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 only the benchmarks have it
    except ImportError:
        return "no picture: matplotlib is not installed (make bench-balance installs it)"
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, panels = plt.subplots(1, 2, figsize=(13, 5), sharey=True, layout="constrained")
    names = [name for name in reversed(_names(found)) if name != REFERENCE]
    height = 0.8 / len(found)
    for panel, key, title in zip(panels, ("mean_s", "p99_s"), ("mean", "p99"), strict=True):
        for index, (load, row) in enumerate(found.items()):
            values = [ratios(row[name], row[REFERENCE])[key] for name in names]
            shown = [min(value, _WIDEST) for value in values]  # what is longer tells its number
            at = [place + (index - 1) * height for place in range(len(names))]
            bars = panel.barh(at, shown, height=height, label=f"{load} of capacity")
            labels = [f"{v:.2f}" if math.isfinite(v) else "does not keep up" for v in values]
            panel.bar_label(bars, labels, padding=3, fontsize=7)
        panel.axvline(1.0, color="black", linewidth=1)
        panel.set_xlim(0, 1.15 * _WIDEST)
        panel.set_title(title)
        panel.set_yticks(range(len(names)), names)
    panels[0].legend(loc="lower right")
    figure.suptitle(f"Times to an answer, as multiples of Envoy's {REFERENCE}")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return str(path)


def _names(found: Found) -> list[str]:
    return list(next(iter(found.values())))


def _cell(own: Rounds, base: Rounds) -> str:
    values = ratios(own, base).values()
    shown = " ".join(f"{value:6.2f}" if math.isfinite(value) else "     -" for value in values)
    goodput, unfinished = _median(own, "goodput"), _median(own, "unfinished")
    lost = f" ({unfinished:.0%} lost)" if unfinished >= 0.005 else ""
    return f"{shown} {goodput:5.0%}{lost}"


def _absolute(rounds: Rounds) -> str:
    return " ".join(f"{1000 * _median(rounds, key):6.0f}" for key in _TIMES) + f"{'':6}"


def _median(rounds: Rounds, key: str) -> float:
    return statistics.median(item[key] for item in rounds)
