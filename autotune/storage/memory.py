"""What earlier jobs that resemble this one learned: found in the databases that they left.

Two jobs are alike as far as their training steps move the same tensors; other ranks, hosts and
versions make them less alike, and the result a guess that the tuner checks. A database that cannot
be read is skipped, and at most ``MOST_FILES`` are opened, the newest: a start never waits long and
never fails because of other jobs' logs.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.storage.contract import Remembered, RunInfo
from autotune.storage.sqlite_reader import (
    RunContent,
    list_runs,
    open_beside_writer,
    read_run,
)
from autotune.storage.sqlite_schema import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    StoredRun,
    fingerprint_hash,
)
from autotune.storage.standing import latest, standing_of
from autotune.trial import Gain, RunState, Trial, TrialState

MOST_FILES = 50
MOST_RUNS = 200
"""Of one file, the latest."""
MOST_REMEMBERED = 3
LEAST_COUNT_RATIO = 0.8
LEAST_BYTES_RATIO = 0.5
"""Jobs whose numbers of tensors, or bytes, differ by more are other models."""
SHIFT = 1.5
"""A machine's speed changes by such a factor within a job, so much is a ratio of scores worth."""


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A run that resembles the job, before its trials are read."""

    path: str
    run: StoredRun
    similarity: float
    why: str


def find_similar(
    run: RunInfo,
    places: Iterable[str],
    *,
    own: tuple[str, str | None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Remembered]:
    """Return what jobs that resemble ``run`` learned, the most similar first, at most three.

    Args:
        run: The job that begins.
        places: Databases, or folders of them. What is not there is skipped.
        own: Database and CSV key of the job itself: its own earlier runs there are not remembered,
            because they were resumed, replayed, or removed by the user.
        say: Receives at most one sentence about databases that cannot be read.

    Returns:
        Finished and unfinished runs with at least one setting tried besides the default; of equal
        jobs the latest finished one, else the latest.
    """
    found: list[_Found] = []
    broken: list[str] = []
    for path in _newest(places):
        try:
            found += _search(path, run, own)
        except Exception as error:  # whatever another job left: never the end of this one
            broken.append(str(error))
    remembered: list[Remembered] = []
    jobs: set[str] = set()
    for candidate in sorted(found, key=_rank, reverse=True):
        if len(remembered) == MOST_REMEMBERED:
            break
        if candidate.run.fingerprint_hash in jobs:
            continue
        try:
            memory = _recall(candidate)
        except Exception as error:
            broken.append(str(error))
            continue
        if memory is not None:
            jobs.add(candidate.run.fingerprint_hash)
            remembered.append(memory)
    if broken:
        others = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
        say(f"skipped in search of what earlier jobs learned: {broken[0]}{others}")
    return remembered


def tensor_similarity(first: Sequence[tuple[str, int]], second: Sequence[tuple[str, int]]) -> float:
    """Return how alike the tensors of two training steps are: 1 if equal, 0 of other models.

    ``(dice + count_ratio * bytes_ratio) / 2``: the share of tensors that both have, and how near
    the sums are; 0 where a ratio is below ``LEAST_COUNT_RATIO`` or ``LEAST_BYTES_RATIO``.

    Args:
        first: (operation, bytes) of each tensor, in any order.
        second: The same of the other job.
    """
    if not first or not second:
        return 0.0
    count_ratio = _ratio(len(first), len(second))
    bytes_ratio = _ratio(sum(size for _, size in first), sum(size for _, size in second))
    if count_ratio < LEAST_COUNT_RATIO or bytes_ratio < LEAST_BYTES_RATIO:
        return 0.0
    common = (Counter(first) & Counter(second)).total()
    dice = 2 * common / (len(first) + len(second))
    return (dice + count_ratio * bytes_ratio) / 2


def compare(here: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[float, str]:
    """Return the similarity of two jobs, 0 for other models, and what to say about it.

    Args:
        here: ``Fingerprint.as_dict`` of the job that begins.
        there: The same of an earlier one.
    """
    if here.get("table") != there.get("table"):
        return 0.0, ""  # other parameters
    first, second = (
        [(str(operation), int(size)) for operation, size in job["tensors"]] for job in (here, there)
    )
    tensors = tensor_similarity(first, second)
    if tensors == 0:
        return 0.0, ""
    similarity = tensors
    why = "the same tensors" if sorted(first) == sorted(second) else "similar tensors"
    ranks, versions = [], []
    for name, unit in (("size", "rank"), ("cross_size", "host")):
        ours, theirs = int(here[name]), int(there[name])
        if ours != theirs:
            similarity *= _ratio(ours, theirs) ** 0.25
            ranks.append(f"{theirs} {unit}{'' if theirs == 1 else 's'} instead of {ours}")
    if (int(here["cross_size"]) == 1) != (int(there["cross_size"]) == 1):
        similarity *= 0.5  # a network is another kind of link
    for name, version in here["versions"].items():
        if (other := there["versions"].get(name, version)) != version:
            similarity *= 0.95
            versions.append(f"{name} {other} instead of {version}")
    if here["fixed"] != there["fixed"]:
        similarity *= 0.9
        versions.append("other fixed parameters")
    if here.get("baseline") != there.get("baseline"):
        similarity *= 0.9
        versions.append("another default")
    why += f" on {', '.join(ranks)}" if ranks else ""
    return similarity, f"{why}, with {', '.join(versions)}" if versions else why


def _newest(places: Iterable[str]) -> list[str]:
    """Return the databases at ``places``: those that are named, then the newest of the folders."""
    named: dict[str, None] = {}
    in_folders: dict[str, float] = {}
    for place in places:
        if os.path.isfile(place):
            named[os.path.realpath(place)] = None
        for path in glob.glob(os.path.join(glob.escape(place), "*.db")):
            with contextlib.suppress(OSError):
                if os.path.isfile(path):
                    in_folders[os.path.realpath(path)] = os.path.getmtime(path)
    newest = sorted(in_folders, key=lambda path: in_folders[path], reverse=True)
    return [*named, *(path for path in newest if path not in named)][:MOST_FILES]


def _search(path: str, run: RunInfo, own: tuple[str, str | None] | None) -> Iterator[_Found]:
    here, hash_ = run.fingerprint.as_dict(), fingerprint_hash(run.fingerprint)
    for stored in _runs_of(path):
        is_same = stored.fingerprint_hash == hash_
        if is_same and own is not None and _is_own(path, stored.csv_key, *own):
            continue
        similarity, why = compare(here, stored.fingerprint)
        if similarity > 0:
            why = "this job in another log" if is_same else why
            yield _Found(path=path, run=stored, similarity=similarity, why=why)


def _is_own(path: str, key: str | None, own_path: str, own_key: str | None) -> bool:
    """Return whether a run is of the log at ``own_path``, or of the same CSV in its folder."""
    if key != own_key or key is None:
        return path == own_path and key == own_key
    return os.path.dirname(path) == os.path.dirname(own_path)


def _runs_of(path: str) -> list[StoredRun]:
    with open_beside_writer(path) as connection:
        return list_runs(connection, most=MOST_RUNS) if _is_ours(connection) else []


def _is_ours(connection: sqlite3.Connection) -> bool:
    """Return whether the tables are ours to read; a folder may hold anybody's databases."""
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("application_id", "user_version")
    )
    return bool(application == APPLICATION_ID and version <= SCHEMA_VERSION)


def _rank(found: _Found) -> tuple[float, bool, str]:
    return found.similarity, found.run.state is RunState.DONE, found.run.started_at


def _recall(found: _Found) -> Remembered | None:
    """Return what the run learned; None: it tried nothing besides the default."""
    with open_beside_writer(found.path) as connection:
        stored = read_run(connection, found.run)
    content = replace(stored, trials=_with_gains(stored.trials))
    standing = standing_of(content)
    best = content.best or (standing.best if standing is not None else None)
    trials = latest(content.trials, best, content.certificate)
    if not any(trial.gain is not None and trial.trial_id for trial in trials):
        return None
    step_us, exposed_share = _default_step(content)
    return Remembered(
        path=found.path,
        run_id=found.run.run_id,
        similarity=found.similarity,
        why=found.why,
        trials=trials,
        best=best.params if best is not None else None,
        certificate=content.certificate,
        step_us=step_us,
        exposed_share=exposed_share,
    )


def _with_gains(trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Return the trials; where none has a gain, with what ratios of their scores are worth."""
    default = next((trial for trial in trials if trial.trial_id == 0), None)
    known = any(trial.gain is not None for trial in trials)
    if known or default is None or default.score <= 0:
        return trials
    return tuple(
        trial
        if trial.trial_id == 0 or trial.state is TrialState.REJECTED
        else replace(trial, gain=_worth(trial.score / default.score))
        for trial in trials
    )


def _worth(ratio: float) -> Gain:
    return Gain(estimate=ratio - 1, low=ratio / SHIFT - 1, high=ratio * SHIFT - 1)


def _default_step(content: RunContent) -> tuple[float | None, float | None]:
    """Return the time of a step under the default and the exposed share of it, where known."""
    samples = [sample for sample in content.samples if sample.trial_id == 0]
    steps = sum(sample.steps for sample in samples)
    duration_us = sum(sample.duration_us for sample in samples)
    if steps <= 0 or duration_us <= 0:
        return None, None
    return duration_us / steps, sum(sample.exposed_us for sample in samples) / duration_us


def _ratio(first: float, second: float) -> float:
    """Return the smaller over the larger; 1 if both are 0."""
    high = max(first, second)
    return min(first, second) / high if high > 0 else 1.0
