"""From live runs to the bench's columns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

LOST_FROM = 200
WORSE = 0.005
CURVE_AT = (20, 50, 100, 150, 200, 300, 400, 600, 800, 1000, 1500, 2000, 3000, 4000, 5000)
TITLES = {"ours": "ours", "horovod": "Horovod's policy"}


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of one run; the truth is the windows that took turns after tuning.

    ``lost`` is cumulative time against the default's, as measured before and after tuning, evenly
    changing in between; steps beyond three times their neighbours' median (another job on the
    machine) count as that median.
    """
    middle = {name: statistics.median(values) for name, values in result["windows"].items()}
    ratios = sorted(
        d / f for d, f in zip(result["windows"]["default"], result["windows"]["final"], strict=True)
    )
    gain = statistics.median(ratios) - 1
    ends = (1000 * result["before_ms"], 1000 * middle["default"])
    lost = lost_curve(np.array(result["step_us"], dtype=float), ends)
    late = lost[LOST_FROM:] if len(lost) > LOST_FROM else lost[-1:]
    keys = ("finished", "trials", "certificate_windows", "steps", "claimed", "final", "ranks")
    return {
        **{key: result[key] for key in keys},
        "seconds": round(sum(result["step_us"]) / 1e6, 1),
        "before_ms": round(result["before_ms"], 2),
        "default_ms": round(middle["default"], 2),
        "final_ms": round(middle["final"], 2),
        "gain": round(gain, 4),
        "gain_spread": [round(ratios[0] - 1, 4), round(ratios[-1] - 1, 4)],
        "regret": round(middle["final"] / min(middle.values()) - 1, 4),
        "lost": round(float(late.max()), 4),
        "lost_at": {k: round(float(lost[k - 1]), 4) for k in CURVE_AT if k <= len(lost)},
    }


def lost_curve(step_us: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    """Return the share of the default's time lost up to each step ``(n,)``.

    Args:
        step_us: Times of the steps, in microseconds.
        ends: A step under the default at their beginning and at their end.
    """
    width = 11
    padded = np.pad(step_us, width // 2, mode="edge")
    middle = np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    fair = np.where(step_us > 3 * middle, middle, step_us)
    default = np.linspace(*ends, len(step_us))
    share: np.ndarray = np.cumsum(fair - default) / np.cumsum(default)
    return share


def _line(policy: str, runs: Sequence[dict[str, Any]]) -> str:
    def middle(name: str) -> float:
        return statistics.median(run[name] for run in runs)

    worse = sum(run["gain"] < -WORSE for run in runs)
    inflation = statistics.fmean(run["claimed"] - run["gain"] for run in runs)
    cells = [TITLES[policy], str(len(runs)), f"{middle('trials'):.0f}"]
    cells += [f"{middle('certificate_windows'):.0f}", f"{middle('steps'):.0f}"]
    cells += [
        f"{middle('seconds'):.0f}",
        f"{middle('default_ms'):.1f}",
        f"{middle('final_ms'):.1f}",
    ]
    low, high = min(run["gain"] for run in runs), max(run["gain"] for run in runs)
    cells += [f"{middle('gain'):+.1%} ({low:+.1%} to {high:+.1%})", f"{middle('regret'):.1%}"]
    cells += [f"{worse} of {len(runs)}", f"{inflation:+.1%}"]
    cells += [f"{middle('lost'):.1%} ({max(run['lost'] for run in runs):.1%})"]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "policy",
    "runs",
    "search trials",
    "certificate windows",
    "steps to the end",
    "seconds",
    "default, ms a step",
    "final, ms a step",
    "gain, median (range)",
    "regret",
    "ended worse by > 0.5 %",
    "claimed minus true gain",
    "most time lost after step 200, median (worst)",
)


EACH = (
    "steps to the end",
    "certified gain",
    "true gain (range of the pairs)",
    "certified minus true, points",
    "most time lost after step 200",
)


def each_run(runs: Sequence[dict[str, Any]]) -> str:
    """Return a table with a row for each run: what its certificate claims, and the truth."""
    lines = [f"| {' | '.join(EACH)} |", "|" + " --- |" * len(EACH)]
    for run in runs:
        low, high = run["gain_spread"]
        cells = [f"{run['steps']:,}", f"{run['claimed']:+.1%}"]
        cells += [f"{run['gain']:+.1%} ({low:+.1%} to {high:+.1%})"]
        cells += [f"{100 * (run['claimed'] - run['gain']):+.1f}", f"{run['lost']:+.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report(content: dict[str, Any]) -> str:
    """Return a table per part, and one of each run of ours."""
    parts = []
    for name, part in content["parts"].items():
        lines = [f"**{name}** ({part['seconds']} s)", ""]
        lines += [f"| {' | '.join(HEAD)} |", "|" + " --- |" * len(HEAD)]
        for policy in TITLES:
            runs = [run for run in part["runs"] if run["policy"] == policy]
            lines += [_line(policy, runs)] if runs else []
        lines += ["", each_run([run for run in part["runs"] if run["policy"] == "ours"])]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
