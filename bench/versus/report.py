"""The report of a run: a table for people, Markdown for docs/performance.md, and rows for build/bench/versus.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench._harness import Row
from bench.versus.rounds import Spread
from bench.versus.run import Run
from bench.versus.workload import LARGER_IS_BETTER, SPARROW, Comparison
from rich.console import Console
from rich.table import Table

COLUMNS = ("figure", "side", "median", "lowest to highest", "Sparrow / side", "its spread", "goal")
Cells = tuple[str, ...]


def print_tables(run: Run) -> None:
    """Print a table for each work load, and what is missing or has failed."""
    console = Console(width=None if Console().is_terminal else 160)
    for comparison in run.comparisons:
        title = f"{comparison.peer}: {comparison.name} (load of the machine {comparison.load:.1f})"
        table = Table(*COLUMNS, title=title, title_justify="left")
        for cells in _lines(comparison):
            table.add_row(*cells)
        console.print(table)
    for name, description in run.descriptions.items():
        console.print(f"{name}: {description}", highlight=False, markup=False)
    for name, reason in run.missing.items():
        console.print(f"missing: {name}: {reason}", highlight=False, markup=False)
    for name, reason in run.failures.items():
        console.print(f"FAILED: {name}: {reason}", highlight=False, markup=False)


def write_markdown(run: Run, path: Path) -> None:
    """Write the same report as Markdown; docs/performance.md shows one of a quiet machine."""
    lines = [f"- {name}: {description}." for name, description in run.descriptions.items()]
    lines += [f"- Missing: {name}: {reason}." for name, reason in run.missing.items()]
    lines += [f"- Failed: {name}: {reason}." for name, reason in run.failures.items()]
    for peer in dict.fromkeys(comparison.peer for comparison in run.comparisons):
        lines += ["", f"### {peer}", "", "| work load | " + " | ".join(COLUMNS) + " |"]
        lines.append("| --- " * (len(COLUMNS) + 1) + "|")
        for comparison in run.comparisons:
            if comparison.peer == peer:
                lines += [f"| {comparison.name} | " + " | ".join(cells) + " |" for cells in _lines(comparison)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def rows(run: Run) -> list[Row]:
    """Return every median with its lowest and highest value, and every ratio with its goal."""
    found = []
    for comparison in run.comparisons:
        for figure in comparison.figures:
            unit = figure.rpartition(", ")[2]
            start = f"{comparison.peer}: {comparison.name}: {figure}"
            for side in comparison.measured:
                spread = comparison.spread(side, figure)
                if spread is not None:
                    found += _spread_rows(f"{start}, {side}", spread, unit)
                ratio = comparison.ratio(side, figure)
                if ratio is not None:
                    goal, at_most = comparison.goal(side, figure), figure not in LARGER_IS_BETTER
                    name = f"{start}, {SPARROW} / {side}"
                    median, *others = _spread_rows(name, ratio, "ratio")
                    found += [median._replace(goal=goal, at_most=at_most), *others]
    return found


def _spread_rows(name: str, spread: Spread, unit: str) -> list[Row]:
    return [
        Row(name, spread.median, unit),
        Row(f"{name}, lowest", spread.lowest, unit),
        Row(f"{name}, highest", spread.highest, unit),
    ]


def _lines(comparison: Comparison) -> Iterator[Cells]:
    for figure in comparison.figures:
        for side in comparison.measured:
            spread = comparison.spread(side, figure)
            if spread is None:
                continue
            ratio = comparison.ratio(side, figure)
            yield (
                figure,
                side,
                _number(spread.median),
                _range(spread),
                "" if ratio is None else _number(ratio.median),
                "" if ratio is None else _range(ratio),
                "" if ratio is None else _goal(comparison, side, figure, ratio.median),
            )


def _goal(comparison: Comparison, side: str, figure: str, ratio: float) -> str:
    goal = comparison.goal(side, figure)
    if goal is None:
        return ""
    row = Row(figure, ratio, "ratio", goal, figure not in LARGER_IS_BETTER)
    return f"{'≤' if row.at_most else '≥'} {goal:g}: {'met' if row.met else 'NOT met'}"


def _range(spread: Spread) -> str:
    return f"{_number(spread.lowest)} to {_number(spread.highest)}"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
