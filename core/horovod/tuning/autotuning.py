"""What front ends and scripts say to the tuner and ask it; nothing here communicates.

A training step ends when the first wrapped DistributedOptimizer has synchronised; without one, at
``hvd.autotune.step()``; else the engine finds the period of the operations by itself. Every rank
says where its steps end; what rank 0 does with them is in ``session``.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.service.session import PUMP_SECONDS
from autotune.service.step_source import StepSource
from horovod.common import basics, rounds
from horovod.common.joining import OpenStore
from horovod.tuning.session import Session, State
from horovod.tuning.table import ENGINE_PARAMETERS, PARAMETERS

MOST_SAMPLES = 2**40
"""The most that ``step`` takes: sums of them stay far within the engine's 64 bits."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """What this rank knows of the tuning; reading it never communicates.

    Attributes:
        state: "off", "nothing to tune", "starting", "tuning", "done" or "lost" (the service ended
            early). Only rank 0 tunes: elsewhere "off", while ``epoch`` and ``params`` are right.
        text: The last progress line (before the first one, the last line of any kind), or the
            reason of the state.
        epoch: Number of parameter changes in force on this rank.
        params: The parameters in force on this rank.
    """

    state: State
    text: str
    epoch: int
    params: Mapping[str, Any]


_session = Session()
_steps = StepSource()
_optimizers = itertools.count()


def init(
    comm: object = None, process_sets: object = None, open_store: OpenStore | None = None
) -> None:
    """Start the runtime, with the tuner where HOROVOD_AUTOTUNE is on. **Collective:** all ranks.

    Idempotent; arguments and errors as ``horovod.common.basics.init``.
    """
    global _session, _steps
    if not basics.is_initialized():
        session = Session()
        basics.init(comm, process_sets, session, open_store)
        _session = session
        if not rounds.has_been_reset():  # there optimizers of before train on
            _steps = StepSource()


def register_optimizer(replaced: int | None) -> int:
    """**Local**, every rank alike. Return the number of a new wrapped optimizer.

    Args:
        replaced: Number of the optimizer that wrapped the same parameters before, if any.
    """
    number = next(_optimizers)
    _steps.register(number, replaced)
    return number


def optimizer_synchronized(number: int) -> None:
    """**Local**, every rank alike. End a training step if optimizer ``number`` ends them."""
    if _steps.ends_step(number):
        _session.end_step()


def tick() -> None:
    """**Local.** Serve the tuner now and then; called after every wait."""
    _session.tick()


def serve_from_a_thread() -> None:
    """**Local.** Serve the tuner from a thread of its own, as long as there is one.

    For front ends whose operations nobody waits for: no thread of the script calls ``tick`` there.
    """
    session = _session
    if not session.is_served or session in _served:
        return
    _served.clear()
    _served.append(session)
    threading.Thread(target=_serve, args=(session,), name="horovod.autotune", daemon=True).start()


_served: list[Session] = []
"""The session that has a thread, if one has."""


def _serve(session: Session) -> None:
    while session.is_served:
        session.tick()
        time.sleep(PUMP_SECONDS)


def step(samples: int | None = None) -> None:
    """End a training step, in scripts without a DistributedOptimizer. **Local**, every rank alike.

    In a job with a wrapped optimizer that one ends the steps; there, call this before its
    ``step()``, and only to say how many samples it is of.

    Args:
        samples: Samples (or tokens) of the step on this rank. Where batches or sequences vary in
            size, the tuner then compares samples per second; rank 0's numbers count.

    Raises:
        ValueError: ``hvd.init()`` was not called, or ``samples`` is no whole number in its range.
    """
    engine = basics.engine()
    if samples is not None:
        is_whole = isinstance(samples, int) and not isinstance(samples, bool)
        if not is_whole or not 1 <= samples <= MOST_SAMPLES:
            raise ValueError(
                f"hvd.autotune.step: samples: expected a whole number between 1 and {MOST_SAMPLES},"
                f" got {samples!r} (rank {basics.rank()} of {basics.size()})"
            )
        engine.add_samples(samples)
    if not _steps.exists:
        _session.end_step()


def pause() -> None:
    """**Local**, every rank alike. Do not score steps until ``resume()``."""
    basics.engine().pause_steps(True)


def resume() -> None:
    """**Local**, every rank alike. Score steps again."""
    basics.engine().pause_steps(False)


def params() -> dict[str, Any]:
    """**Local**, never communicates. Return {name: value} of the parameters in force here.

    Those that are tuned in some jobs only are in it where they are not at their default.
    """
    current = basics.engine().params()
    values = {row.name: getattr(current, row.name) for row in ENGINE_PARAMETERS}
    usual = {row.name for row in PARAMETERS}
    defaults = {row.name: row.default for row in ENGINE_PARAMETERS}
    return {
        name: value for name, value in values.items() if name in usual or value != defaults[name]
    }


def status() -> Status:
    """**Local**, never communicates. Return what this rank knows of the tuning."""
    engine = basics.engine()
    return Status(state=_session.state, text=_session.text, epoch=engine.epoch(), params=params())
