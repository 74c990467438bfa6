"""The table that ``autotune show`` prints: plain text, one line per trial."""

from __future__ import annotations

import os

from autotune.cli.table import align
from autotune.exact import rounded
from autotune.result import SCORE_UNIT, gain_text, result_of
from autotune.storage.locking import holder
from autotune.storage.reader import LogView
from autotune.trial import RunState, Trial

_COLUMNS = (
    ("", "trial", ""),
    ("fusion_", "threshold", "MiB"),
    ("cycle_", "time", "ms"),
    ("cache_", "capacity", "entries"),
    ("hierarchical_", "allreduce", ""),
    ("hierarchical_", "allgather", ""),
    ("", "score", "bytes/us"),
    ("over", "default", "%"),
    ("", "state", ""),
)


def table(view: LogView) -> str:
    """Return the log as text: state, job, trials with the incumbent marked, gain.

    Raises:
        NoAnswerError: The log holds no complete trial.
    """
    result = result_of(view)
    best = view.answer()
    rows = [[*_cells(view, trial), " *" if trial == best else ""] for trial in view.trials]
    parts = [_headline(view), *_job(view), "", *align([*_header(), *rows]), ""]
    parts.append(f"score in {SCORE_UNIT}; * is the {'best' if view.finished else 'best so far'}")
    if view.certificate is not None:
        parts += [f"gain: {gain_text(result)}", view.certificate.reason]
    return "\n".join(part.rstrip() for part in parts)


def _headline(view: LogView) -> str:
    live = holder(os.path.realpath(view.path))
    state = "finished" if view.finished else "unfinished"
    if live is not None:
        state += f", in use by {live}"
    elif not view.finished and view.run is not None and view.run.state is not RunState.DONE:
        state += ", the job ended before the tuner did; the same job would resume"
    source = " (written by Horovod)" if view.kind == "horovod" else ""
    count = f"{len(view.trials)} trial{'' if len(view.trials) == 1 else 's'}"
    return f"{view.path}{source}: {count}, {state}"


def _job(view: LogView) -> list[str]:
    if view.run is None:
        return []
    run = view.run
    where = f"{run.size} ranks, {run.local_size} a host, {run.cross_size} host(s)"
    return [f"{where}; rank 0 on {run.host}; begun {run.started_at}; seed {run.seed}"]


def _header() -> list[list[str]]:
    return [[*names, ""] for names in zip(*_COLUMNS, strict=True)]


def _cells(view: LogView, trial: Trial) -> list[str]:
    params = trial.params
    return [
        str(trial.trial_id),
        rounded(params.fusion_threshold_bytes / 2**20, 6),
        rounded(params.cycle_time_ms, 6),
        str(params.cache_capacity),
        str(int(params.hierarchical_allreduce)),
        str(int(params.hierarchical_allgather)),
        rounded(trial.score, 6),
        _over_default(view, trial),
        str(trial.state),
    ]


def _over_default(view: LogView, trial: Trial) -> str:
    """Return the trial's score against the default's; Horovod never reads the default."""
    first = view.trials[0]
    if view.kind == "horovod" or first.trial_id != 0 or first.score <= 0:
        return "-"
    return f"{100 * (trial.score / first.score - 1):+.1f}"
