"""What physics expects of a setting, before it was tried: the cost model, fitted to the default.

The training step's own records say what the links are like: the default's exposed communication,
given the tensors of a step, fixes how slow they are. Whether that is latency or bandwidth it cannot
say, so several machines that agree on the default are kept as rivals, and the readings decide
between them. No files, clocks or probes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autotune.bayes.encoding import FloatArray
from autotune.costmodel import Machine, Predictor, Workload, matched
from autotune.trial import CommParams, Setting
from autotune.tuning.steps.scoring import Reading

LATENCY_FACTORS = (1.0, 10.0, 0.1)
"""Rivals: links whose messages cost so many times what is typical beside their bytes."""


class PhysicsTrend:
    """Log scores of any setting, up to a constant, by each of ``len(LATENCY_FACTORS)`` machines."""

    def __init__(
        self,
        operations: Sequence[tuple[str, int]],
        default: Setting,
        reading: Reading,
        *,
        size: int,
        hosts: int,
    ) -> None:
        """Fit the machines to a reading of the default.

        Args:
            operations: (operation, payload bytes) of one training step, in order.
            default: The default setting; the engine has one like it (``Setting.as_engine``).
            reading: Its step time and exposed communication.
            size: Ranks of the job.
            hosts: Hosts they are on.
        """
        exposed = reading.exposed_us / max(1, reading.steps)
        gathered = [k for k, (name, _) in enumerate(operations) if name.endswith("allgather")]
        self._workload = Workload.spread(
            [bytes_ for _, bytes_ in operations],
            compute_us=max(1.0, reading.step_us - exposed),
            gathered=gathered,
        )
        engine = _engine_setting(default)
        typical = Machine(hosts=hosts, local_size=max(1, size // hosts))
        machines = [
            matched(self._workload, with_latency(typical, factor), engine, exposed)
            for factor in LATENCY_FACTORS
        ]
        self._models = [Predictor(self._workload, machine) for machine in machines]
        self._known: dict[Setting, FloatArray] = {}

    def __call__(self, params: Setting) -> FloatArray:
        """Return the expected log scores ``(p,)`` of a setting; remembered."""
        if params not in self._known:
            engine = _engine_setting(params)
            times = [model(engine).step_us for model in self._models]
            self._known[params] = np.array([-math.log(time) for time in times])
        return self._known[params]


def _engine_setting(params: Setting) -> CommParams:
    engine = params.as_engine
    assert engine is not None
    return engine


def with_latency(machine: Machine, factor: float) -> Machine:
    """Return ``machine`` with messages ``factor`` times as slow, and bytes as they are."""
    return replace(
        machine,
        local=replace(machine.local, alpha_us=machine.local.alpha_us * factor),
        cross=replace(machine.cross, alpha_us=machine.cross.alpha_us * factor),
    )
