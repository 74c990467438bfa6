"""The live view in a terminal: where a run is, what is best so far, what is left.

It only reads: sizes and times of the log's files once a second, and the log itself where those have
changed. It limits itself to a thousandth of a core: after a view that took 5 ms of CPU time the
next one is due in 10 s, and half is left for looking at the files.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from autotune.errors import LogError
from autotune.exact import rounded
from autotune.report.changed import stamp, wait_for
from autotune.report.evidence import Curve, Evidence, Pair, Price
from autotune.report.follow import is_in_use
from autotune.report.story import known_trials
from autotune.report.tables import duration, interval
from autotune.report.verdict import Verdict, judge, percent, share
from autotune.result import NOT_CERTIFIED, setting_text
from autotune.storage.reader import LogView, read_log
from autotune.storage.readings import Readings, read_readings
from autotune.trial import RunState, Trial

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

OWN_SHARE = 0.0005
"""Part of a core that views take; looks at the files take less than that again."""
LOOK_S = 1.0
"""Seconds between two looks at the files, and between two views, at least."""
PATIENCE = 3
"""Views in a row that fail before it is said: a log may just be being replaced, or be locked."""
TRIALS_SHOWN = 8
GAINS_OF_THEN = "gains as each trial ended; bold: the best, with all that is known of it by now"
FEWEST_PAIRS, MOST_PAIRS = 6, 48
"""Pairs of a comparison, see ``autotune.tuning.comparing.certify``."""


@dataclass(frozen=True, kw_only=True)
class Now:
    """Where a run is.

    Attributes:
        view: The log.
        verdict: What is known of the gain.
        in_use: A job writes to the log, as far as this host can see.
        trials: With what is known of each.
        most: Trials, at most; None: not known.
        pairs: Those of the comparison so far.
        price: What tuning has cost; None: not known.
        budget: Share that it may cost; None: not known.
        drift: The default's step time; None: not known.
        left_s: Seconds that are left, at most, of what goes on now; None: not known.
        trouble: Why the log cannot be read any more; what is shown is from before.
    """

    view: LogView
    verdict: Verdict
    in_use: bool
    trials: tuple[Trial, ...]
    most: int | None
    pairs: tuple[Pair, ...]
    price: Price | None
    budget: float | None
    drift: Curve | None
    left_s: float | None
    trouble: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the job said at its end that tuning has not finished."""
        run = self.view.run
        return not self.in_use and run is not None and run.state is RunState.UNFINISHED

    @property
    def phase(self) -> str:
        """What goes on."""
        if self.view.finished:
            return "finished"
        if self.has_ended:
            return f"the job ended after {len(self.trials)} trials; the same job goes on from here"
        if self.pairs:
            return f"compares with the default: pair {len(self.pairs)} of {_pairs_text()}"
        if not self.trials:
            return "warm-up: no trial has ended yet"
        most = f" of at most {self.most}" if self.most else ""
        if self.view.kind == "horovod":
            return f"Horovod's tuner has read {len(self.trials)} settings"
        return f"explores: {len(self.trials)} trials{most} have ended"


def _pairs_text() -> str:
    return f"{FEWEST_PAIRS} to {MOST_PAIRS}"


class Follower:
    """Reads what is new in one log."""

    def __init__(self, path: str) -> None:
        """Follow the log at ``path``; nothing is read yet."""
        self._path = path
        self._known: tuple[tuple[object, ...], Readings] | None = None

    def look(self) -> Now:
        """Return where the run is.

        Raises:
            LogError: The log cannot be read.
        """
        view = read_log(self._path)
        evidence = Evidence(self._readings(view))
        trials = known_trials(view) if view.best is not None else view.trials
        settings = view.run.settings if view.run is not None else {}
        most, budget = settings.get("max_samples"), settings.get("budget")
        most = most if isinstance(most, int) else None
        pairs = _pairs(view, evidence)
        return Now(
            view=view,
            verdict=judge(view),
            in_use=is_in_use(self._path),
            trials=trials,
            most=most,
            pairs=pairs,
            price=evidence.price(),
            budget=float(budget) if isinstance(budget, int | float) else None,
            drift=evidence.default_curve(),
            left_s=None if view.finished else _left_s(evidence, most, pairs),
        )

    def _readings(self, view: LogView) -> Readings:
        if view.database is None or view.run is None:
            return Readings()
        run = view.run
        key = (view.database, run.run_id, run.started_at, run.host, run.pid, run.seed)
        if self._known is None or self._known[0] != key:  # a log that began anew counts anew
            self._known = (key, Readings())
        return read_readings(view.database, run.run_id, self._known[1])


def _pairs(view: LogView, evidence: Evidence) -> tuple[Pair, ...]:
    """Return the pairs of the comparison that goes on or has been made."""
    other = evidence.compared_at_last()
    return evidence.pairs(other, view.certificate) if other else ()


def _left_s(evidence: Evidence, most: int | None, pairs: tuple[Pair, ...]) -> float | None:
    """Return how long what goes on will take at the present pace, at most, in seconds."""
    if pairs:
        each = evidence.pair_s()
        return None if each is None else each * (MOST_PAIRS - len(pairs))
    ends = sorted(evidence.trial_ends_s().values())
    if most is None or len(ends) < 3:
        return None
    each = median(later - end for end, later in itertools.pairwise(ends))
    each = max(each, (ends[-1] - ends[0]) / (len(ends) - 1))
    return each * max(0, most - len(ends))


def show(path: str, *, once: bool = False) -> None:
    """Show the log at ``path`` in the terminal until tuning has finished or the user interrupts.

    Args:
        path: The log; on a terminal it need not be there yet.
        once: Show it once only; so it is where the output is no terminal.

    Raises:
        LogError: The log cannot be read.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    follower = Follower(path)
    if once or not console.is_terminal:
        _print(console, follower.look())
        return
    wait_for(path, console.print)
    now = follower.look()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        live.update(picture(now), refresh=True)
        watch(path, follower, lambda seen: live.update(picture(seen), refresh=True), first=now)


def watch(
    path: str,
    follower: Follower,
    update: Callable[[Now], None],
    *,
    first: Now,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Call ``update`` whenever the log has changed, until tuning has finished.

    Returns as well when the user interrupts, and when a job that held the log has ended. A log that
    cannot be read for a while, such as one on a file system that has gone, is said once and waited
    for.

    Args:
        path: The log.
        follower: Reads it.
        update: Shows it.
        first: What is shown already.
        sleep: Waits.
    """
    now, seen, was_held = first, None, first.in_use
    due_s, failures = 0.0, 0
    try:
        while not now.view.finished:
            sleep(LOOK_S)
            present, is_held = stamp(path), is_in_use(path)
            has_ended = was_held and not is_held
            if present == seen and is_held == was_held:
                continue
            if time.monotonic() < due_s and not has_ended:
                continue
            begin_s = time.process_time()
            try:
                now, failures = follower.look(), 0
            except LogError as error:
                failures += 1
                if failures == PATIENCE:
                    update(replace(now, trouble=str(error)))
                seen = None  # also a log that comes back as it was is read again
                due_s = time.monotonic() + pause_s(time.process_time() - begin_s)
                continue
            update(now)
            if has_ended:
                return
            seen, was_held = present, is_held
            due_s = time.monotonic() + pause_s(time.process_time() - begin_s)
    except KeyboardInterrupt:
        return


def pause_s(cpu_s: float) -> float:
    """Return how long to wait after a view that took so much CPU time."""
    return max(LOOK_S, cpu_s / OWN_SHARE)


def _print(console: Console, now: Now) -> None:
    from rich.console import Console as Plain

    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Plain(highlight=False, width=100)
    console.print(picture(now))


def picture(now: Now) -> RenderableType:
    """Return what is shown."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for name, text in lines(now):
        facts.add_row(name, Text(text))
    has_gains = any(trial.gain is not None for trial in now.trials)
    caption = GAINS_OF_THEN if has_gains else None
    trials = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    known = ("gain", "90 % interval") if has_gains else ("score, bytes/us",)
    for title in ("trial", "setting", *known, "state"):
        trials.add_column(title, justify="left" if title in ("setting", "state") else "right")
    for cells, is_best in rows(now):
        trials.add_row(*map(Text, cells), style="bold" if is_best else "")
    return Group(facts, trials) if now.trials else facts


def lines(now: Now) -> list[tuple[str, str]]:
    """Return what is known, as (name, text)."""
    view, run = now.view, now.view.run
    by = "a job writes to it" if now.in_use else "no job writes to it, as far as this host can see"
    found = [("log", view.path if view.finished else f"{view.path}: {by}")]
    if run is not None:
        found.append(("job", f"{run.size} ranks on {run.cross_size} host(s), rank 0 on {run.host}"))
    found.append(("now", now.phase))
    found.append(("gain", _gain_text(now)))
    if now.price is not None:
        found.append(("budget used", _budget_text(now.price, now.budget)))
    if now.left_s is not None and math.isfinite(now.left_s) and not now.has_ended:
        then = "" if now.pairs else f" for trials, then {_pairs_text()} pairs"
        found.append(("left", f"at most about {duration(round(now.left_s))}{then}"))
    if now.drift is not None and len(now.drift.step_us) > 1:
        step, change = rounded(float(now.drift.end_us) / 1000, 4), percent(now.drift.drift)
        text = f"the default took {step} ms a step at last, {change} since the beginning"
        found.append(("drift", text))
    warnings = [*view.warnings]
    if now.trouble:
        warnings.append(f"{now.trouble}; what stands here was read before that")
    return [*found, *(("warning", text) for text in warnings)]


def _budget_text(price: Price, budget: float | None) -> str:
    if not price.other_steps:
        return "nothing: only the default was read"
    if price.lost_us <= 0:
        return f"nothing: readings of other settings saved {share(-price.share)}"
    limit = "" if budget is None else f", may lose {share(budget)}"
    return f"lost {share(price.share)} of the time in readings{limit}"


def _gain_text(now: Now) -> str:
    verdict = now.verdict
    if now.pairs and not now.view.finished:
        gains = sorted(pair.gain for pair in now.pairs)
        return (
            f"median of {len(gains)} pairs so far: {percent(gains[len(gains) // 2])}, "
            f"the least {percent(gains[0])}, the most {percent(gains[-1])}"
        )
    if verdict.gain is None:
        return verdict.text
    text = " ".join(interval(verdict.gain)).replace(" % ", " % (", 1) + ")"
    standing = now.view.standing
    if verdict.compared:
        return f"{verdict.answer}: {text}"
    default = now.view.trials[0].params
    what = setting_text(standing.best.params, beside=default) if standing is not None else ""
    return f"best so far {what}: {text}, {NOT_CERTIFIED}"


def rows(now: Now) -> list[tuple[tuple[str, ...], bool]]:
    """Return the latest trials as cells, and whether each is the best so far."""
    view = now.view
    best = view.standing.best if view.standing is not None else view.best
    shown = list(now.trials[-TRIALS_SHOWN:])
    if best is not None and best.trial_id not in [trial.trial_id for trial in shown]:
        shown = [trial for trial in now.trials if trial.trial_id == best.trial_id] + shown
    default = now.trials[0].params if now.trials else None
    has_gains = any(trial.gain is not None for trial in now.trials)
    found: list[tuple[tuple[str, ...], bool]] = []
    for trial in shown:
        is_default = trial.trial_id == 0 and view.kind != "horovod"
        setting = "the default"
        if not is_default and default is not None:
            setting = setting_text(trial.params, beside=default) or "as the first one"
        known = interval(trial.gain) if has_gains else (rounded(trial.score, 5),)
        cells = (str(trial.trial_id), setting, *known, str(trial.state))
        found.append((cells, best is not None and trial.trial_id == best.trial_id))
    return found
