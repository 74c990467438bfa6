"""An act of the demo: a job is tuned, the answer is shown, default and answer are timed in turns.

Both acts run the same script under the same commands; they differ in where its ranks are.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from compare import LEAST_PAIRS, compare, read_medians

from autotune.errors import LogError
from autotune.result import Result, gain_text, read_result
from autotune.trial import CommParams

BIN = Path(sys.executable).parent
TRAIN = Path(__file__).with_name("train.py")
TUNING_LIMIT_S = 100
JOB_LIMIT_S = 150

Words = list[str | Path]
Start = Callable[[Words, dict[str, str], int | None], "subprocess.Popen[str]"]
"""Starts words with more variables; their output goes to pipes or, for None, where ours goes."""


class TimeIsUp(SystemExit):
    """A command takes too long for a demo, which ends with it unless somebody goes on."""


@dataclass(frozen=True, kw_only=True)
class Act:
    """A job that is tuned and then timed.

    Attributes:
        start: Starts a command where rank 0 is.
        launch: Options of horovodrun.
        train: Options of train.py in every run.
        output: Folder for the log and the step times.
        epochs: Length of the tuned job.
        timed_epochs: Length of the timed jobs.
        pairs: Pairs of timed jobs.
        place: Where the ranks are, for people.
        deadline: ``time.monotonic()`` at which the act should be over.
    """

    start: Start
    launch: tuple[str, ...]
    train: tuple[str, ...] = ()
    output: Path
    epochs: int
    timed_epochs: int
    pairs: int
    place: str
    deadline: float

    @property
    def log(self) -> Path:
        return self.output / "autotune.csv"

    def command(self, epochs: int, *arguments: str | Path) -> Words:
        """Return the command that trains for ``epochs`` epochs."""
        words: Words = [BIN / "horovodrun", *self.launch, sys.executable, TRAIN, *self.train]
        return [*words, "--epochs", str(epochs), *arguments]

    def train_untuned(self) -> None:
        """Train shortly with the default settings."""
        self.show(self.command(self.timed_epochs))

    def play(self) -> None:
        """Tune, show the answer, and time it."""
        self.tune()
        if self.answer() is None:
            print(f"\nNot one trial ended in this time ({machine()}).", flush=True)
            return
        self.show([BIN / "autotune", "show", self.log])
        self.show([BIN / "autotune", "best", self.log])
        self.time_answer(self.log)

    def answer(self) -> Result | None:
        """Return what the log says, or None where no trial has ended."""
        try:
            return read_result(str(self.log))
        except LogError:
            return None

    def time_answer(self, log: Path) -> None:
        """Time default and the answer of ``log`` in turns, if they differ."""
        answer = read_result(str(log))
        if answer.params == CommParams():
            reason = "No gain was proven" if answer.finished else "Nothing was proven in this time"
            print(f"\n{reason} ({machine()}): the default is the answer, nothing is to compare.")
            return
        self.measure(log)
        if answer.gain is not None:
            print(f"The tuned job had said: {gain_text(answer)}", flush=True)

    def tune(self) -> None:
        """Train with tuning on; a job that ends before its tuner does goes on from its checkpoint.

        On a busy machine the tuner pauses to keep its budget, so one job may not be long enough.
        One that takes too long is ended: its log holds all finished trials.
        """
        switches = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": short(self.log.absolute())}
        begin = time.monotonic()
        try:
            command = self.command(self.epochs, "--output", self.output)
            self.show(command, TUNING_LIMIT_S, **switches)
            answer, now = self.answer(), time.monotonic()
            finished = answer is not None and answer.finished
            if not finished and now + 2 * (now - begin) < self.deadline:
                print("\nThe job ended before its tuner: it goes on, from its checkpoint and log.")
                command = self.command(2 * self.epochs, "--output", self.output)
                self.show(command, TUNING_LIMIT_S, **switches)
        except TimeIsUp:
            print(
                f"\nAfter {TUNING_LIMIT_S} s the job is ended; its log holds all finished trials."
            )

    def measure(self, log: Path) -> None:
        """Run pairs of jobs, equal seeds in each, and print what they show."""
        print("\nDefault and tuned in turns, pair by pair in the other order:\n")
        before: dict[str, Words] = {"default": [], "tuned": [BIN / "autotune", "replay", log, "--"]}
        for words in before.values():
            print(f"$ {shown([*words, *self.timed(Path('STEP-TIMES'), 'SEED')])}", flush=True)
        runs: dict[str, list[Path]] = {name: [] for name in before}
        begin = time.monotonic()
        for pair in range(self.pairs):
            each = (time.monotonic() - begin) / max(pair, 1)
            if pair >= LEAST_PAIRS and time.monotonic() + each > self.deadline:
                print(f"time is up: {pair} pairs instead of {self.pairs}")
                break
            for name in ("default", "tuned") if pair % 2 == 0 else ("tuned", "default"):
                stats = self.output / f"{name}-{pair}.json"
                words = [*before[name], *self.timed(stats, str(100 + pair))]
                self.run(words, subprocess.PIPE, JOB_LIMIT_S)
                runs[name].append(stats)
            default_ms, tuned_ms = (np.median(read_medians(paths[-1])) for paths in runs.values())
            print(f"pair {pair + 1}: default {default_ms:.1f}, tuned {tuned_ms:.1f} ms a step")
            sys.stdout.flush()
        default, tuned = ([read_medians(path) for path in paths] for paths in runs.values())
        result = compare(default, tuned, np.random.default_rng(0))
        print(f"\n{self.place}, {machine()}; medians of {len(tuned)} pairs")
        print("\n".join(result.lines()), flush=True)

    def timed(self, stats: Path, seed: str) -> Words:
        """Return the command of a timed job."""
        return self.command(self.timed_epochs, "--stats", stats, "--seed", seed)

    def show(self, words: Words, limit_s: float = JOB_LIMIT_S, **environ: str) -> None:
        """Run a command where everyone can see it."""
        assigned = [f"{name}={text}" for name, text in environ.items()]
        print(f"\n$ {' '.join([*assigned, shown(words)])}", flush=True)
        self.run(words, None, limit_s, **environ)

    def run(self, words: Words, output: int | None, limit_s: float, **environ: str) -> None:
        """Run a command; the demo ends when it fails.

        Raises:
            TimeIsUp: It has not ended within ``limit_s`` seconds; it is ended, and what it said
                is printed.
        """
        process = self.start(words, environ, output)
        try:
            texts = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            end(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                print("".join(text for text in process.communicate(timeout=3) if text), end="")
            raise TimeIsUp(f"demo: no end within {limit_s:g} s: {shown(words)}") from None
        finally:
            end(process)
        if process.returncode:
            print("".join(text for text in texts if text), end="")
            sys.exit(f"demo: exit code {process.returncode}: {shown(words)}")


def start_here(words: Words, environ: dict[str, str], output: int | None) -> subprocess.Popen[str]:
    """Start ``words`` on this machine as it is."""
    return subprocess.Popen(
        [str(word) for word in words],
        env={**job_environment(), **environ},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        text=True,
    )


def job_environment() -> dict[str, str]:
    """Return this environment without settings of an earlier job, one thread per rank."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HOROVOD_")}
    return {**kept, **RANK_VARIABLES}


RANK_VARIABLES = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def end(process: subprocess.Popen[str]) -> None:
    """End a process that still runs; it has a moment to end what it started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def machine() -> str:
    """Return what the numbers were taken on."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f}"


def shown(words: Words) -> str:
    """Return ``words`` as a person would type them."""
    return shlex.join([short(word) for word in words])


def short(word: str | Path) -> str:
    """Return a word as a person would type it here."""
    if isinstance(word, Path) and word.is_absolute():
        inside = word.is_relative_to(Path.cwd())
        return word.name if word.parent == BIN else os.path.relpath(word) if inside else str(word)
    return "python" if word == sys.executable else str(word)
