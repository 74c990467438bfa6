"""From runs to the table of the bench: one line per policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Runs = Sequence[Mapping[str, Any]]
MANY_STEPS, MANY_SECONDS = 600, 30
"""Tuning should be done within the longer of the two."""
CLEAR = 0.10
"""Jobs in which so much could be gained decide about the steps to the end."""


def column(runs: Runs, name: str) -> np.ndarray:
    return np.array([float(run[name]) for run in runs])


def quantile(values: np.ndarray, share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else float("nan")


def relative_steps(runs: Runs) -> np.ndarray:
    """Steps to the end over what is wanted: 600, or 30 s of default steps if these are more."""
    wanted = np.maximum(MANY_STEPS, MANY_SECONDS * 1000 / column(runs, "step_ms"))
    return column(runs, "steps") / wanted


def summarise(runs: Runs) -> dict[str, Any]:
    """Return the figures of some runs of one policy."""
    clear = [run for run in runs if float(run["gain"]) >= CLEAR]
    inflation = column(runs, "claimed") - column(runs, "gain")
    result = {
        "runs": len(runs),
        "unfinished": int(len(runs) - column(runs, "finished").sum()),
        "trials_median": quantile(column(runs, "trials"), 0.5),
        "windows_median": quantile(column(runs, "windows"), 0.5),
        "steps_median": quantile(column(runs, "steps"), 0.5),
        "clear_runs": len(clear),
        "clear_steps_median": quantile(column(clear, "steps"), 0.5),
        "clear_relative_steps_median": quantile(relative_steps(clear), 0.5),
        "gain_median": quantile(column(runs, "gain"), 0.5),
        "regret_median": quantile(column(runs, "regret"), 0.5),
        "regret_p90": quantile(column(runs, "regret"), 0.9),
        "worse": int(column(runs, "worse").sum()),
        "inflation_mean": float(inflation.mean()) if len(runs) else float("nan"),
        "lost_p50": quantile(column(runs, "lost"), 0.5),
        "lost_max": quantile(column(runs, "lost"), 1.0),
        "lost_allowed_max": quantile(column(runs, "lost_allowed"), 1.0),
        "lost_allowed_over": int((column(runs, "lost_allowed") > 0.05).sum()),
    }
    return {name: _rounded(value) for name, value in result.items()}


def _rounded(value: float | int) -> float | int | None:
    """Return a float to four digits; None (JSON has no NaN) for what no run says."""
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else float(f"{value:.4g}")


def _clear_steps(s: Mapping[str, Any]) -> str:
    if s["clear_steps_median"] is None:
        return "no such run"
    return f"{s['clear_steps_median']:.0f} ({s['clear_relative_steps_median']:.2f})"


COLUMNS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("runs", lambda s: f"{s['runs']}"),
    ("search trials", lambda s: f"{s['trials_median']:.0f}"),
    ("certificate windows", lambda s: f"{s['windows_median']:.0f}"),
    ("steps to the end", lambda s: f"{s['steps_median']:.0f}"),
    ("gain >= 10 %: steps (over 600 or 30 s)", _clear_steps),
    (
        "regret, median and 90 %",
        lambda s: f"{s['regret_median']:.1%}, {s['regret_p90']:.1%}",
    ),
    ("ended worse by > 0.5 %", lambda s: f"{s['worse']} of {s['runs']}"),
    ("claimed minus true gain", lambda s: f"{s['inflation_mean']:+.1%}"),
    (
        "most time lost, worst run (less one abandoned step per trial)",
        lambda s: f"{s['lost_max']:.1%} ({s['lost_allowed_max']:.1%})",
    ),
)


def table(runs: Runs, titles: Mapping[str, str], head: str) -> str:
    """Return the table of all policies in some runs, in Markdown."""
    lines = [f"| {head} | {' | '.join(title for title, _ in COLUMNS)} |"]
    lines.append("|" + " --- |" * (len(COLUMNS) + 1))
    for policy, title in titles.items():
        chosen = [run for run in runs if run["policy"] == policy]
        if chosen:
            figures = summarise(chosen)
            lines.append(f"| {title} | {' | '.join(show(figures) for _, show in COLUMNS)} |")
    return "\n".join(lines)


def by_surface(runs: Runs, policy: str) -> str:
    """Return one line per surface of one policy."""
    names = list(dict.fromkeys(run["surface"] for run in runs if run["policy"] == policy))
    head = ["surface", "possible", "gain", "regret, median and 90 %", "trials", "windows", "steps"]
    head += ["(over wanted)", "worse", "claimed - true", "lost (allowed)"]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for name in names:
        chosen = [run for run in runs if run["policy"] == policy and run["surface"] == name]
        s = summarise(chosen)
        cells = [name, f"{float(chosen[0]['possible']):.1%}", f"{s['gain_median']:.1%}"]
        cells += [f"{s['regret_median']:.1%}, {s['regret_p90']:.1%}", f"{s['trials_median']:.0f}"]
        cells += [f"{s['windows_median']:.0f}", f"{s['steps_median']:.0f}"]
        cells += [f"{quantile(relative_steps(chosen), 0.5):.2f}"]
        cells += [f"{s['worse']} of {s['runs']}", f"{s['inflation_mean']:+.1%}"]
        cells += [f"{s['lost_max']:.1%} ({s['lost_allowed_max']:.1%})"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
