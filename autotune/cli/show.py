"""The table that ``autotune show`` prints: plain text, one line per trial.

Every number of a line is the latest that is known of its setting, so a setting has one score and
one gain wherever it stands: what the job held for the best when it was last asked, and of the
setting that was compared with the default in pairs the gain that the comparison found.
"""

from __future__ import annotations

import os

from autotune.cli.table import lines
from autotune.exact import rounded, rounded_shown
from autotune.result import (
    NOT_CERTIFIED,
    SCORE_UNIT,
    gain_text,
    interval_text,
    result_of,
)
from autotune.space import Parameter
from autotune.storage.locking import holder
from autotune.storage.reader import LogView
from autotune.storage.standing import latest
from autotune.trial import RunState, Trial


def _heading(parameter: Parameter) -> tuple[str, str, str]:
    """Return the three lines above a parameter's column: its name without the unit, the unit."""
    is_word = parameter.type is bool or bool(parameter.names)
    unit = parameter.shown_unit or ("" if is_word else parameter.unit)
    first, line, second = parameter.name.removesuffix(f"_{parameter.unit}").rpartition("_")
    return f"{first}{line}", second, unit


_GAIN_COLUMN = ("gain over the default", "at the same time", "% (interval)")
_STATE_COLUMN = ("", "state", "")


def table(view: LogView) -> str:
    """Return the log as text: state, job, trials with the most promising one marked, gain.

    Raises:
        NoAnswerError: The log holds no complete trial.
    """
    result = result_of(view)
    marked = view.standing.best if view.standing is not None else view.answer()
    trials = latest(view.trials, marked, view.certificate)
    gains = any(trial.gain is not None for trial in trials)
    columns = (
        ("", "trial", ""),
        *(_heading(parameter) for parameter in result.params.reading_order()),
        ("", "score", "bytes/us"),
        *([_GAIN_COLUMN] if gains else []),
        _STATE_COLUMN,
    )
    header = ["\n".join(names) for names in columns]
    rows = [
        [*_cells(trial, gains=gains), " *" if trial.params == marked.params else ""]
        for trial in trials
    ]
    parts = [_headline(view), *_job(view), "", *lines([*header, ""], rows), ""]
    parts += _legend(view, gains=gains)
    if view.certificate is not None:
        parts += [f"gain: {gain_text(result)}", view.certificate.reason]
    return "\n".join(part.rstrip() for part in parts)


def _legend(view: LogView, *, gains: bool) -> list[str]:
    """Return what the numbers and the mark mean."""
    lines = [f"score in {SCORE_UNIT}"]
    if gains:
        lines[0] += ": that of the default times 1 + gain"
        lines.append("gain with its 90 % interval")
        if view.certificate is None:
            lines[1] += f", {NOT_CERTIFIED}"
        elif view.certificate.trial_id:
            lines[1] += f"; of trial {view.certificate.trial_id} the certificate's, which is surer"
    elif view.kind == "horovod" or view.database is not None:
        lines.append("what was read at different times need not compare, and gains are not known")
    else:
        lines[0] += ": that of the default times 1 + gain"
        lines.append("without its database the log says of no gain how sure it is")
    if view.finished:
        return [*lines, "* is the best"]
    if view.standing is None:
        return [*lines, "* is the best so far"]
    if view.standing.best.params == view.answer().params:
        return [*lines, "* is the best so far"]
    return [*lines, "* is the most promising so far; the answer is the default as long as in doubt"]


def _headline(view: LogView) -> str:
    live = holder(os.path.realpath(view.path))
    state = "finished" if view.finished else "unfinished"
    if view.damage:
        state = "whether finished is not known"
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


def _cells(trial: Trial, *, gains: bool) -> list[str]:
    values = trial.params.as_dict()
    known = "default" if trial.trial_id == 0 else "-"
    if trial.gain is not None:
        known = interval_text(trial.gain)
    return [
        str(trial.trial_id),
        *(rounded_shown(row, values[row.name], 6) for row in trial.params.reading_order()),
        rounded(trial.score, 6),
        *([known] if gains else []),
        str(trial.state),
    ]
