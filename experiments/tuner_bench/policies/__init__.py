"""The policies of the bench behind one interface.

A policy makes steps with ``Job.run``, changes settings with ``Job.put``, says with
``Job.recommend`` what it would keep, and returns an ``Ending``. It never sees the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from job import Job

from policies import bayes, horovod, ours
from policies.ending import Ending

Policy = Callable[[Job, np.random.Generator], Ending]

POLICIES: Mapping[str, Policy] = {
    "ours": ours.run,
    "ours-no-prior": partial(ours.run, prior=False),
    "horovod": horovod.run,
    "gp_minimize": bayes.gp_minimize,
    "bo15": bayes.bo15,
    "random": bayes.random_search,
}
TITLES = {
    "ours": "ours",
    "ours-no-prior": "ours without the cost model",
    "horovod": "Horovod's published policy",
    "gp_minimize": "skopt.gp_minimize, 20 evaluations",
    "bo15": "BO with 15 points (as ByteScheduler)",
    "random": "random search, 20 settings",
}

__all__ = ["POLICIES", "TITLES", "Ending", "Policy"]
