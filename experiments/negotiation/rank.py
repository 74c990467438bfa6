"""One rank: steps of 161 tensors of one element each: negotiation is nearly all there is."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from harness import tell

import horovod.torch as hvd
from horovod import _engine
from horovod.common import basics

TENSORS = 161
WARM_UP, STEPS, ROUNDS = 100, 100, 11
COUNTED = ("protocol_ns", "skew_ns", "pack_ns", "transfer_ns", "unpack_ns", "messages", "heard")

hvd.init()
engine = basics.engine()
values = np.ones(TENSORS, dtype=np.float32)
first = values.ctypes.data
kind = _engine.Kind(operation="allreduce", dtype="float32", reduce_op="average")
members = _engine.PreparedAll([_engine.Prepared(kind, f"tensor.{i}", (1,)) for i in range(TENSORS)])
places = _engine.Places([first + 4 * i for i in range(TENSORS)])


def run(steps: int) -> float:
    """Return the duration of ``steps`` steps in microseconds a step."""
    begin = time.perf_counter()
    for _ in range(steps):
        engine.finish_all(engine.start_all(members, places, places), TENSORS)
        engine.end_step()
    return (time.perf_counter() - begin) / steps * 1e6


run(WARM_UP)
rounds = []
for _ in range(ROUNDS):
    before = engine.counters()
    step_us = run(STEPS)
    after = engine.counters()
    counted = {name: (after[name] - before[name]) / STEPS for name in COUNTED}
    rounds.append({"step_us": step_us, **counted})
if not np.allclose(values, 1.0):
    sys.exit("wrong averages")
if hvd.rank() == 0:
    tell(rounds)
hvd.shutdown()
