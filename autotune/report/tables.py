"""The tables of a report: everything that is drawn is in one of them, as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.exact import rounded, rounded_shown, value_text
from autotune.report.explain import Explanation, bare_text, range_text
from autotune.report.figures import waiting_rows
from autotune.report.several import Comparison, Scaling, answer_text, default_of, in_force
from autotune.report.story import Story, state_text
from autotune.report.verdict import percent, share
from autotune.result import SCORE_UNIT, setting_text
from autotune.space import Parameter
from autotune.timeline.findings import size
from autotune.trial import Gain, Setting

UNKNOWN = "-"
MOST_ROWS = 60
"""Rows of a table of drift; neighbours share one where there are more."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table; every row has as many cells as the header.

    Attributes:
        caption: What it shows.
        header: Names of the columns, with units.
        rows: Cells; the first of each row is its heading.
        marked: Number of the row to be looked at; -1: none.
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: int = -1


def interval(gain: Gain | None) -> tuple[str, str]:
    """Return a gain and its interval as two cells."""
    if gain is None:
        return UNKNOWN, UNKNOWN
    low, high = percent(gain.low).removesuffix(" %"), percent(gain.high)
    return percent(gain.estimate), f"{low} to {high}"


def ms(us: float) -> str:
    """Return microseconds as milliseconds."""
    return rounded(us / 1000, 4)


def duration(s: float) -> str:
    """Return seconds as people write them."""
    if not math.isfinite(s):
        return UNKNOWN
    if abs(s) < 120:
        return f"{rounded(s, 3)} s"
    minutes, rest = divmod(round(s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def pairs(story: Story) -> Table | None:
    """Return every pair of the comparison."""
    if not story.pairs:
        return None
    what = "the other setting"
    if story.compared is not None:
        default = story.view.trials[0].params
        what = setting_text(story.compared.params, beside=default) or what
    return Table(
        caption=f"Every pair of windows: the default beside {what}",
        header=("pair", "default, ms a step", "other, ms a step", "gain"),
        rows=tuple(
            (str(one.number), ms(one.default_us), ms(one.other_us), percent(one.gain))
            for one in story.pairs
        ),
    )


def changes(explanation: Explanation) -> Table | None:
    """Return the way from the default to the setting, one parameter at a time."""
    if not explanation.changes:
        return None
    rows = [
        (
            one.after_text,
            one.before_text,
            *interval(one.gain),
            *interval(one.total),
            interval(one.read)[0] if one.read is not None else "not tried",
        )
        for one in explanation.changes
    ]
    caption = "From the default to this setting, one parameter at a time, by the surrogate"
    if any(len(one.parts) > 1 for one in explanation.changes):
        caption += (
            "; in one row: what no trial tried without the other, which nobody can tell apart"
        )
    return Table(
        caption=caption,
        header=(
            "change to",
            "from",
            "gain of this change",
            "90 % interval",
            "gain so far",
            "90 % interval of that",
            "as read",
        ),
        rows=tuple(rows),
    )


def ranges(explanation: Explanation) -> Table:
    """Return what does not matter, and over which range."""
    rows = []
    for one in explanation.slices:
        low, high = one.bounds
        within, bounds = "no other value", UNKNOWN
        if len(one.inside) > 1:
            within = range_text(one)
            bounds = f"{percent(low).removesuffix(' %')} to {percent(high)}"
        far, beyond = one.farthest, "at no value"
        if far is not None:
            estimate, ends = interval(far.difference)
            beyond = f"{bare_text(one.parameter, far.value)}: {estimate} ({ends})"
        tried = str(one.values_tried)
        rows.append(
            (one.parameter.word, bare_text(one.parameter, one.at), within, bounds, beyond, tried)
        )
    for other in explanation.not_varied:
        value = bare_text(other.parameter, other.value)
        rows.append((other.parameter.word, value, "not varied", UNKNOWN, other.why, "1"))
    return Table(
        caption="Where a parameter does not matter: less than 1 % is expected to change",
        header=(
            "parameter",
            "its value",
            "does not matter within",
            "90 %: what that may change",
            "value that changes most, and by how much",
            "values tried",
        ),
        rows=tuple(rows),
    )


def waiting(story: Story) -> Table | None:
    """Return what a step waits."""
    rows = []
    for label, one in waiting_rows(story):
        if one is not None:
            spread = f"{share(one.share_low).removesuffix(' %')} to {share(one.share_high)}"
            rows.append(
                (
                    label,
                    ms(one.step_us),
                    ms(one.exposed_us),
                    share(one.share),
                    spread,
                    str(one.windows),
                )
            )
    if not rows:
        return None
    return Table(
        caption="A training step, and the part of it that waits for communication (medians)",
        header=(
            "setting",
            "ms a step",
            "of that waiting, ms",
            "waiting, share",
            "of single windows",
            "windows",
        ),
        rows=tuple(rows),
    )


def history(story: Story) -> Table:
    """Return all trials."""
    marked = story.replay.params if story.replay is not None else None
    is_timed = any(one.at_s is not None for one in story.attempts)
    has_gains = any(one.trial.gain is not None for one in story.attempts)
    attempts = story.attempts
    order = attempts[0].trial.params.reading_order() if attempts else ()
    header = ["trial", *map(_column, order)]
    header += [f"score, {SCORE_UNIT.partition(',')[0]}"]
    header += ["gain when it ended", "90 % interval"] if has_gains else []
    header += ["ended after, s", "windows"] if is_timed else []
    rows, mark = [], -1
    for number, one in enumerate(attempts):
        trial, values = one.trial, one.trial.params.as_dict()
        if trial.params == marked and mark < 0:
            mark = number
        cells = [str(trial.trial_id)]
        cells += [rounded_shown(parameter, values[parameter.name], 4) for parameter in order]
        cells += [rounded(trial.score, 5)]
        if has_gains:
            is_default = trial.trial_id == 0
            cells += ["default", UNKNOWN] if is_default else [*interval(trial.gain)]
        if is_timed:
            cells += [UNKNOWN if one.at_s is None else rounded(one.at_s, 4), str(one.windows)]
        rows.append((*cells, str(trial.state)))
    return Table(
        caption="All trials, in the order in which they ended",
        header=(*header, "state"),
        rows=tuple(rows),
        marked=mark,
    )


def _column(parameter: Parameter) -> str:
    is_word = parameter.type is bool or bool(parameter.names)
    unit = parameter.shown_unit or ("" if is_word else parameter.unit)
    return f"{parameter.word}{f', {unit}' if unit else ''}"


def drift(story: Story) -> Table | None:
    """Return the default's step time over time."""
    curve = story.drift
    if curve is None:
        return None
    count = len(curve.step_us)
    each = math.ceil(count / MOST_ROWS)
    rows = []
    for start in range(0, count, each):
        part = slice(start, start + each)
        rows.append(
            (
                rounded(float(curve.at_s[part].mean()), 4),
                ms(float(sorted(curve.step_us[part])[len(curve.step_us[part]) // 2])),
                ms(float(curve.low_us[part].min())),
                ms(float(curve.high_us[part].max())),
            )
        )
    return Table(
        caption="The default's step time while the run went on",
        header=("after, s", "ms a step", "fastest window", "slowest window"),
        rows=tuple(rows),
    )


def slices(explanation: Explanation) -> list[Table]:
    """Return the surrogate's slices, one table a parameter."""
    tables = []
    for one in explanation.slices:
        values = [place.value for place in one.places]
        rows = tuple(
            (
                value_text(one.parameter, place.value),
                *interval(place.over_default),
                *interval(place.difference),
            )
            for place in one.places
        )
        tables.append(
            Table(
                caption=f"{one.parameter.name}, everything else as in the setting",
                header=(
                    "value",
                    "gain over the default",
                    "90 % interval",
                    "over the setting",
                    "90 % interval of that",
                ),
                rows=rows,
                marked=values.index(one.at),
            )
        )
    return tables


def cost(story: Story) -> Table | None:
    """Return what tuning cost."""
    if story.cost is None:
        return None
    price = story.cost.price
    kept = story.cost.break_even
    even = "nothing was kept that could make up for it"
    if price.lost_us <= 0:
        even = "at once: nothing was lost"
    elif kept is not None:
        even = steps_text(kept)
    budget = UNKNOWN if story.cost.budget is None else share(story.cost.budget)
    lost = f"{duration(price.lost_us / 1e6)} ({share(price.share)})"
    if not price.other_steps:
        lost = "none: only the default was read"
    elif price.lost_us <= 0:
        lost = f"none; they saved {duration(-price.lost_us / 1e6)} ({share(-price.share)})"
    rows = [
        ("from the first reading to the last", duration(price.wall_s)),
        ("training steps in readings", f"{price.steps:,}"),
        ("of them not under the default", f"{price.other_steps:,}"),
        ("changes of the setting", f"{price.changes:,}"),
        ("time lost in readings of other settings", lost),
        ("share that may be lost (HOROVOD_AUTOTUNE_BUDGET)", budget),
        ("made up for after", even),
    ]
    return Table(caption="What tuning cost", header=("what", "how much"), rows=tuple(rows))


def steps_text(steps: Sequence[float]) -> str:
    """Return (most probable, fewest, most) steps in words."""
    estimate, fewest, most = (math.ceil(one) if math.isfinite(one) else None for one in steps)
    if estimate is None:
        return "never"
    ends = f"{fewest:,} to {most:,}" if most is not None else f"at least {fewest:,}"
    return f"{estimate:,} steps under the tuned setting ({ends})"


def job(story: Story) -> Table:
    """Return the job, its versions, and the log itself."""
    view, run = story.view, story.view.run
    kinds = {"csv": "CSV of this package", "horovod": "CSV of Horovod", "sqlite": "database"}
    rows = [("log", f"{story.path} ({kinds[view.kind]})"), ("state", state_text(story))]
    if view.database is not None and view.database != view.path:
        rows.append(("database", view.database))
    if run is not None:
        rows += [
            ("ranks", f"{run.size}, {run.local_size} a host, {run.cross_size} host(s)"),
            ("rank 0", f"on {run.host}"),
            ("begun", run.started_at),
            ("ended", run.finished_at or UNKNOWN),
        ]
        if story.tensors:
            tensors = f"{story.tensors:,} collectives, {size(story.payload_bytes)}"
            rows.append(("a training step exchanges", tensors))
        rows += [(f"version of {name}", str(text)) for name, text in sorted(run.versions.items())]
        rows += [
            (f"setting {name}", str(value))
            for name, value in sorted(run.settings.items())
            if value is not None
        ]
        rows.append(("seed", str(run.seed)))
    else:
        rows.append(("job", "this log does not say: no ranks, hosts or versions"))
    rows.append(("trials", str(len(view.trials))))
    rows.append(("read at", story.made_at))
    cells = tuple((str(name), str(text)) for name, text in rows)
    return Table(caption="The job, and this log", header=("what", "value"), rows=cells)


def setting(params: Setting) -> Table:
    """Return a setting, one parameter a row."""
    default = type(params)().as_dict()
    values = params.as_dict()
    rows = tuple(
        (
            one.name,
            bare_text(one, values[one.name]),
            bare_text(one, default[one.name]),
            one.env,
        )
        for one in params.reading_order()
    )
    return Table(
        caption="The setting",
        header=("parameter", "value", "default", "variable"),
        rows=rows,
    )


def gains(comparison: Comparison) -> Table:
    """Return several logs, one a row."""
    rows = []
    for name, story in zip(comparison.names, comparison.stories, strict=True):
        run, step, default = story.view.run, in_force(story), default_of(story)
        verdict = story.verdict
        spoken = " ".join(interval(verdict.gain)).replace(" % ", " % (", 1) + ")"
        worth = "-" if verdict.gain is None else spoken
        if verdict.gain is not None and not verdict.compared:
            worth += ", not certified yet"
        rows.append(
            (
                name,
                "-" if run is None else str(run.size),
                "-" if run is None else str(run.cross_size),
                verdict.answer,
                worth,
                "-" if default is None else ms(default.step_us),
                "-" if step is None else ms(step.step_us),
                "-" if step is None else share(step.share),
                answer_text(story),
            )
        )
    return Table(
        caption="The logs",
        header=(
            "log",
            "ranks",
            "hosts",
            "faster?",
            "gain (interval)",
            "default, ms a step",
            "answer, ms a step",
            "of that waiting",
            "the answer",
        ),
        rows=tuple(rows),
    )


def scaling(found: Scaling) -> Table:
    """Return how a job scales."""
    work = "G / W" if found.is_shared else "G"
    rows = tuple(
        (
            str(point.ranks),
            ms(point.default_us),
            ms(point.step_us),
            f"{point.speed_up:.2f}",
            share(point.efficiency),
            f"{share(point.efficiency_low).removesuffix(' %')} to {share(point.efficiency_high)}",
            ms(point.model_us),
            ms(point.communication_us),
            ms(point.wait_us),
        )
        for point in found.points
    )
    return Table(
        caption="The same job on different numbers of ranks, times in ms a step",
        header=(
            "ranks",
            "default",
            "answer",
            "speed-up",
            "efficiency",
            "by the middle half of the windows",
            work,
            "C(W)",
            "waiting that was seen",
        ),
        rows=rows,
    )
