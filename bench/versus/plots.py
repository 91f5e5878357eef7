"""Plots of a run: for each peer the ratios of all work loads with their spread and goals, as a PNG."""

from __future__ import annotations

import re
from pathlib import Path

from bench.versus.packages import import_package
from bench.versus.run import Run
from bench.versus.workload import LARGER_IS_BETTER, Comparison

BAR_INCHES = 0.32


def draw(run: Run, folder: Path) -> list[Path]:
    """Write one plot for each peer; raise `PeerMissing` where matplotlib cannot be had."""
    matplotlib = import_package("matplotlib", is_fetch_allowed=not run.scale.is_smoke)
    matplotlib.use("Agg")
    drawn = []
    for peer in dict.fromkeys(comparison.peer for comparison in run.comparisons):
        bars = [bar for comparison in run.comparisons if comparison.peer == peer for bar in _bars(comparison)]
        if bars:
            name = re.sub(r"\W+", "-", peer).strip("-").lower()
            drawn.append(_draw_ratios(peer, bars, folder / f"versus-{name}.png"))
    return drawn


def _bars(comparison: Comparison) -> list[tuple[str, float, float, float, float | None]]:
    """Return label, median, lowest, highest and goal of every ratio; above 1 Sparrow is better, also for costs."""
    found = []
    for figure in comparison.figures:
        for side in comparison.measured:
            ratio = comparison.ratio(side, figure)
            if ratio is None or not ratio.lowest:
                continue
            goal = comparison.goal(side, figure)
            label = f"{comparison.name} · {figure}, {side}"
            if figure in LARGER_IS_BETTER:
                found.append((label, ratio.median, ratio.lowest, ratio.highest, goal))
            else:
                values = 1 / ratio.median, 1 / ratio.highest, 1 / ratio.lowest
                found.append((label, *values, None if goal is None else 1 / goal))
    return found


def _draw_ratios(peer: str, bars: list[tuple[str, float, float, float, float | None]], path: Path) -> Path:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 1.2 + BAR_INCHES * len(bars)), layout="constrained")
    for at, (_, median, lowest, highest, goal) in enumerate(bars):
        axes.barh(at, median - 1, left=1, color="#2a7f62" if median >= 1 else "#b5651d", height=0.7)
        axes.plot([lowest, highest], [at, at], color="black", linewidth=1)
        if goal is not None:
            axes.plot([goal, goal], [at - 0.4, at + 0.4], color="#c0392b", linewidth=2)
    axes.set_yticks(range(len(bars)), [bar[0] for bar in bars], fontsize=8)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.axvline(1, color="gray", linewidth=1)
    # Of the figure, because the axes are narrower than the text.
    figure.supxlabel("times better than the peer (log scale; black: lowest to highest round, red: goal)", fontsize=9)
    axes.set_title(f"Sparrow and {peer}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    return path
