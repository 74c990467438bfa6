"""What a training step costs under a setting: a model of this engine; no files, clocks, globals.

=====================  ============  ==============================================================
word                   unit          meaning
=====================  ============  ==============================================================
``Workload``                         tensors of one step, and when the backward pass has them ready
``Link``               us, us/byte   alpha (one message) and beta (one byte) of a kind of connection
``EngineCosts``        us            what announcing, agreeing and dispatching cost
``Machine``                          hosts, ranks on each, links, engine costs
``predict``                          (workload, machine, setting) -> ``Prediction``
``Predictor``                        the same for many settings: what they share is computed once
=====================  ============  ==============================================================

One prediction costs about 0.1 ms for 161 tensors. Reading order: ``workload``, ``machine``,
``collectives`` (one operation), ``engine`` (a step: announcements, fusion, overlap), ``calibrate``
(links from measured times).
"""

from autotune.costmodel.calibrate import fit_link, matched
from autotune.costmodel.engine import Prediction, Predictor, predict
from autotune.costmodel.machine import EngineCosts, Link, Machine
from autotune.costmodel.workload import Workload

__all__ = [
    "EngineCosts",
    "Link",
    "Machine",
    "Prediction",
    "Predictor",
    "Workload",
    "fit_link",
    "matched",
    "predict",
]
