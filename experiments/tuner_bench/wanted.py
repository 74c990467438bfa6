"""What is wanted of the tuner in each kind of job, beside what was seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from claims import STANDING, TRIAL
from kinds import KINDS, WANTED, Wanted
from summary import Runs, column, quantile

from autotune.trial import TrialState

LATER = 10
"""Intervals of lines after so many trials have to be narrow."""
ALL = "all"
Figures = Mapping[str, float]


def figures(runs: Runs, claims: Runs) -> dict[str, float]:
    """Return what some runs of one policy come to; NaN where none of them says it."""
    certified = [run for run in runs if int(run["certified"])]
    proven = column(certified, "claimed") - column(certified, "gain")
    said = [claim for claim in claims if not math.isnan(float(claim["claimed"]))]
    sure = [claim for claim in said if not math.isnan(float(claim["low"]))]
    abandoned = [c for c in _of(claims, TRIAL) if c["state"] == str(TrialState.ABANDONED)]
    late = [claim for claim in sure if int(claim["trial"]) >= LATER]
    true = column(sure, "true")
    held = (column(sure, "low") <= true) & (true <= column(sure, "high"))
    return {
        "runs": len(runs),
        "unfinished": float(len(runs) - column(runs, "finished").sum()),
        "worse": float(column(runs, "worse").sum()),
        "regret_median": quantile(column(runs, "regret"), 0.5),
        "regret_p90": quantile(column(runs, "regret"), 0.9),
        "certified": len(certified),
        "certified_p90": quantile(np.abs(proven), 0.9),
        "certified_above_p90": quantile(proven, 0.9),
        "standing_p90": quantile(_excess(_of(said, STANDING)), 0.9),
        "trial_p90": quantile(_excess(_of(said, TRIAL)), 0.9),
        "coverage": float(held.mean()) if sure else math.nan,
        "width": quantile(column(late, "high") - column(late, "low"), 0.5),
        "silent": 1 - len(sure) / len(claims) if claims else math.nan,
        "trials": quantile(column(runs, "trials"), 0.5),
        "steps": quantile(column(runs, "steps"), 0.5),
        "lost": quantile(column(runs, "lost"), 1.0),
        "lost_allowed": quantile(column(runs, "lost_allowed"), 1.0),
        "abandoned": len(abandoned),
        "abandoned_faster": float((column(abandoned, "true") > 0).sum()),
    }


def _of(claims: Runs, line: str) -> Runs:
    return [claim for claim in claims if claim["line"] == line]


def _excess(claims: Runs) -> np.ndarray:
    return column(claims, "claimed") - column(claims, "true")


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One line of the table.

    Attributes:
        title, name: For people; of the figure.
        show: The figure as text.
        wanted: The bound as text; empty: none.
        holds: Whether the figure keeps it.
    """

    title: str
    name: str
    show: Callable[[float], str]
    wanted: Callable[[Wanted], str] = lambda w: ""
    holds: Callable[[float, Wanted], bool] = lambda value, w: True


def percent(value: float) -> str:
    return f"{value:.1%}"


def count(value: float) -> str:
    return f"{value:.0f}"


def most(title: str, name: str, bound: Callable[[Wanted], float]) -> Measure:
    """Return a measure in percent that has an upper bound."""
    return Measure(
        title=title,
        name=name,
        show=percent,
        wanted=lambda w: f"<= {bound(w):.0%}",
        holds=lambda value, w: value <= bound(w),
    )


def none_of(title: str, name: str) -> Measure:
    """Return a count that has to be 0."""
    return Measure(
        title=title,
        name=name,
        show=count,
        wanted=lambda w: "0",
        holds=lambda value, w: value == 0,
    )


def few(title: str, name: str, bound: Callable[[Wanted], float]) -> Measure:
    """Return a count that has an upper bound."""
    return Measure(
        title=title,
        name=name,
        show=count,
        wanted=lambda w: f"<= {bound(w):.0f}",
        holds=lambda value, w: value <= bound(w),
    )


MEASURES = (
    Measure(title="runs", name="runs", show=count),
    none_of("unfinished", "unfinished"),
    none_of("ends worse than the default by > 0.5 %", "worse"),
    most("regret, median", "regret_median", lambda w: w.regret_median),
    most("regret, 90 %", "regret_p90", lambda w: w.regret_p90),
    Measure(title="certified", name="certified", show=count),
    most("certified gain minus truth, size, 90 %", "certified_p90", lambda w: w.certified_p90),
    Measure(title="... signed, 90 %", name="certified_above_p90", show=percent),
    most("best so far: claimed minus truth, 90 %", "standing_p90", lambda w: w.claimed_p90),
    most("a trial: claimed minus truth, 90 %", "trial_p90", lambda w: w.claimed_p90),
    Measure(
        title="intervals that hold the truth",
        name="coverage",
        show=percent,
        wanted=lambda w: f"{w.coverage[0]:.0%}-{w.coverage[1]:.0%}",
        holds=lambda value, w: w.coverage[0] <= value <= w.coverage[1],
    ),
    most("their width from trial 10 on, median", "width", lambda w: w.width),
    Measure(title="lines without an interval", name="silent", show=percent),
    few("search trials, median", "trials", lambda w: w.trials),
    few("steps to the end, median", "steps", lambda w: w.steps),
    Measure(title="time lost, worst run", name="lost", show=percent),
    most("... less one abandoned step per trial", "lost_allowed", lambda w: 0.05),
    Measure(title="abandoned trials", name="abandoned", show=count),
    none_of("... that are faster than the default", "abandoned_faster"),
)


def by_kind(runs: Runs, claims: Runs, policy: str) -> dict[str, dict[str, float]]:
    """Return the figures of one policy: of each kind, and of all that remember nothing."""
    runs = [run for run in runs if run["policy"] == policy]
    claims = [claim for claim in claims if claim["policy"] == policy]
    kinds = [kind for kind in KINDS if any(run["kind"] == kind for run in runs)]
    result = {
        kind: figures(
            [run for run in runs if run["kind"] == kind],
            [claim for claim in claims if claim["kind"] == kind],
        )
        for kind in kinds
    }
    cold = {kind for kind in kinds if not KINDS[kind].memory}
    if len(cold) < 2:
        return result
    together = ([line for line in lines if line["kind"] in cold] for lines in (runs, claims))
    return {**result, ALL: figures(*together)}


def table(seen: Mapping[str, Figures]) -> str:
    """Return the table, in Markdown: a line per measure, a column per kind; **bold**: not kept."""
    lines = [_line(["", "wanted", *seen]), _line(["---"] * (2 + len(seen)))]
    for measure in MEASURES:
        cells = [_cell(measure, kind, values) for kind, values in seen.items()]
        lines.append(_line([measure.title, measure.wanted(WANTED), *cells]))
    return "\n".join(lines)


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _cell(measure: Measure, kind: str, values: Figures) -> str:
    value = values[measure.name]
    if math.isnan(value):
        return "-"
    wanted = KINDS[kind].wanted if kind in KINDS else WANTED
    text = measure.show(value)
    bound = measure.wanted(wanted)
    if bound != measure.wanted(WANTED):
        text = f"{text} ({bound})"
    return text if measure.holds(value, wanted) else f"**{text}**"
