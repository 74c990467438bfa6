"""Finds NCCL's start-up settings for the links of a job, before it makes its first communicator.

Every rank starts a helper process (``measure``) per candidate on the GPU that will be its own; all
helpers are alive at once and take turns, so that what the machine does meanwhile meets all alike.
A candidate is taken only if it beats the defaults in most rounds and by ``WORTH``. What fails or
takes longer than ``LIMIT_S`` leaves NCCL's defaults.
"""

from __future__ import annotations

import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 15.0
"""Of a probe, from the start of the helpers to the result."""
SIZES = (64 * 2**20, 25 * 2**20, 4 * 2**20)
"""Bytes of the operations that are timed: the engine's and DistributedDataParallel's buckets, and
what is left over at the end of a step."""
ROUNDS, OPERATIONS = 8, 3
"""Turns of every candidate, and operations of each size in a turn, where there is time for them."""
FEWEST_ROUNDS = 4
SHARE = 0.7
"""Of the time that is left when the helpers are connected: so much is planned, by what the defaults
take."""
WORTH = 0.05
"""A gain below this is left alone."""
MEASURE = Path(__file__).with_name("measure.py")

_NOT_FOR_HELPERS = ("NCCL_TUNER_PLUGIN", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS")
"""NCCL writes to standard output, where a helper answers."""

Exchange = Callable[[Any], Sequence[Any]]
"""**Collective.** Returns what every rank has given, by rank."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a probe says, the same on all ranks.

    Attributes:
        settings: {variable: text} to put in force; {}: NCCL's defaults.
        gain: Of operations, ``time(defaults) / time(settings) - 1``.
        default_us, found_us: Median of one operation of every size, under the defaults and under
            the settings.
        sizes: Bytes of the operations that were timed.
        seconds: What the probe took.
        reason: Why there is no result; "": there is one.
    """

    settings: Mapping[str, str]
    gain: float = 0.0
    default_us: float = 0.0
    found_us: float = 0.0
    sizes: tuple[int, ...] = SIZES
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Turns:
    """What every candidate does, the same on all ranks.

    Attributes:
        sizes: Bytes of its operations.
        rounds: Its turns.
        operations: Of each size in a turn.
    """

    sizes: tuple[int, ...] = SIZES
    rounds: int = ROUNDS
    operations: int = OPERATIONS


class _Helper:
    """One child process, which is talked to in lines."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._heard = b""

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{text}\n".encode())
            self._process.stdin.flush()
        except OSError:
            pass  # `hear` tells why

    def hear(self, word: str, until: float) -> str:
        """Return what follows ``word``; RuntimeError where something else comes, or nothing."""
        assert self._process.stdout is not None
        while b"\n" not in self._heard:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise RuntimeError(f"a helper took longer than {LIMIT_S:.0f} s")
            more = os.read(self._process.stdout.fileno(), 65536)
            if not more:
                raise RuntimeError("a helper has ended")
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        first, _, rest = line.decode("utf-8", "replace").partition(" ")
        if first != word:
            raise RuntimeError(rest or first)
        return rest

    def end(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


def probe(
    tried: Sequence[Mapping[str, str]],
    exchange: Exchange,
    *,
    rank: int,
    size: int,
    gpu: int,
    nccl: str,
    environ: Mapping[str, str],
    command: Sequence[str] | None = None,
) -> Found:
    """Time settings of NCCL against its defaults. **Collective.**

    Args:
        tried: {variable: text} of the candidates; the first is {}, the defaults.
        exchange: Among all ranks.
        rank: Of this process.
        size: Ranks of the job.
        gpu: This rank's, as CUDA numbers them here.
        nccl: Path of the library.
        environ: Of this process.
        command: Program of a helper and its first arguments; None: ``measure``.
    """
    begin = time.monotonic()
    until = begin + LIMIT_S
    words = [*(command or (sys.executable, "-I", "-S", str(MEASURE)))]
    words += [str(each) for each in (gpu, rank, size, SIZES[0], nccl)]
    plain = {name: text for name, text in environ.items() if name not in _NOT_FOR_HELPERS}
    helpers: list[_Helper] = []
    trouble = ""
    times: list[list[float]] = []
    try:
        helpers = [_Helper(words, {**plain, **settings}) for settings in tried]
    except OSError as error:
        trouble = f"a helper cannot be started: {error}"

    def together(step: Callable[[], Any]) -> tuple[str, list[Any]]:
        """Make a step, unless one has failed; return why it has on any rank, and all results."""
        nonlocal trouble
        result: Any = None
        if not trouble:
            try:
                result = step()
            except RuntimeError as error:
                trouble = str(error)
        heard = exchange((trouble, result))
        return _first_trouble(heard), [result for _, result in heard]

    turns: Turns | None = None
    try:
        reason, ids = together(lambda: _roots(helpers, rank, until))
        if not reason:
            reason, _ = together(lambda: _connect(helpers, ids[0], until))
        if not reason:
            reason, looks = together(lambda: _look(helpers[0], until))
        if not reason:
            left, smallest_us = min(each[0] for each in looks), max(each[1] for each in looks)
            turns = plan_turns(smallest_us, left, len(tried))
            if turns is None:
                took = f"an operation of {SIZES[-1] >> 20} MiB takes {smallest_us / 1000:.0f} ms"
                reason = f"{took}: too long for a comparison of {LIMIT_S:.0f} s"
        if turns is not None:
            reason, all_times = together(lambda: _take_turns(helpers, turns, until))
            times = all_times[0]
    finally:
        for helper in helpers:
            helper.end()
    seconds = time.monotonic() - begin
    if reason or turns is None:
        return Found(settings={}, reason=reason, seconds=seconds)
    best, gain = choose(times)
    default_us, found_us = (statistics.median(row[k] for row in times) for k in (0, best))
    return Found(
        settings=dict(tried[best]),
        gain=gain,
        default_us=default_us,
        found_us=found_us,
        sizes=turns.sizes,
        seconds=seconds,
    )


def plan_turns(smallest_us: float, left_s: float, candidates: int) -> Turns | None:
    """Return what can be timed before the time is over; None: too little to compare anything.

    Large operations are left out where the links are slow: there they tell the links' speed alone.

    Args:
        smallest_us: Time of one of the smallest operations under the defaults; larger ones are
            taken to last longer by their bytes.
        left_s: Time that is left.
        candidates: How many take turns, the defaults among them.
    """
    for first in range(len(SIZES)):
        one_s = candidates * smallest_us * sum(SIZES[first:]) / SIZES[-1] / 1e6
        rounds = int(SHARE * left_s / max(one_s, 1e-6))
        if rounds >= FEWEST_ROUNDS:
            operations = min(max(1, rounds // ROUNDS), OPERATIONS)
            return Turns(sizes=SIZES[first:], rounds=min(rounds, ROUNDS), operations=operations)
    return None


def choose(times: Sequence[Sequence[float]]) -> tuple[int, float]:
    """Return the number of the best candidate, 0: the defaults, and its gain over them.

    Args:
        times: By round, then by candidate.
    """
    count = len(times[0])
    gains = [statistics.median(row[0] / row[k] - 1 for row in times) for k in range(count)]
    best = max(range(count), key=gains.__getitem__)
    wins = sum(row[best] < row[0] for row in times)
    if gains[best] < WORTH or wins <= len(times) / 2:
        return 0, 0.0
    return best, gains[best]


def _first_trouble(heard: Sequence[tuple[str, Any]]) -> str:
    return next((f"{why} (rank {rank})" for rank, (why, _) in enumerate(heard) if why), "")


def _roots(helpers: Sequence[_Helper], rank: int, until: float) -> list[str]:
    if rank != 0:
        return []
    for helper in helpers:
        helper.say("root")
    return [helper.hear("id", until) for helper in helpers]


def _connect(helpers: Sequence[_Helper], ids: Sequence[str], until: float) -> None:
    for helper, one in zip(helpers, ids, strict=True):
        helper.say(f"begin {one}")
    for helper in helpers:
        helper.hear("ready", until)


def _look(helper: _Helper, until: float) -> tuple[float, float]:
    """Return the seconds left, and us of one of the smallest operations."""
    us = 0.0
    for _ in range(2):  # the first one makes connections
        helper.say(f"time {SIZES[-1]} 1")
        us = float(helper.hear("us", until))
    return until - time.monotonic(), us


def _take_turns(helpers: Sequence[_Helper], turns: Turns, until: float) -> list[list[float]]:
    """Return us by round and candidate: of one operation of every size.

    The helpers of one candidate wait for each other in every operation, so ranks go on together.
    """
    times = []
    for _ in range(turns.rounds):
        row = []
        for helper in helpers:
            total = 0.0
            for count_bytes in turns.sizes:
                helper.say(f"time {count_bytes} {turns.operations}")
                total += float(helper.hear("us", until))
            row.append(total)
        times.append(row)
    return times
