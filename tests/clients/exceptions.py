"""Tests of others that cannot pass here, and why."""

from __future__ import annotations

import re

EXCEPTIONS: tuple[tuple[str, str, str], ...] = (
    (
        r"test_torch, .*",
        r"test_broadcast_state$|test_broadcast_state_options$|test_force_allreduce$",
        "gives a bias to every optimizer of torch, and its Muon takes matrices only",
    ),
    (
        r"test_torch, .*, 4 ranks",
        r"test_global_barrier_op$",
        "sometimes: takes the time from a rank's own return from an allreduce, which may come "
        "after that of rank 0, whose sleep of 5 s it wants to see (12 ms after it were seen)",
    ),
    (
        r"test_tensorflow_process_sets, .*",
        r"test_legacy_DistributedOptimizer_process_sets$",
        "wraps an optimizer of TensorFlow 1 (tf.compat.v1.train), of which none is served",
    ),
    (
        r"test_process_sets_multi_comm, .*",
        r"test_multi_comm$",
        "asks for the size after an hvd.init that was refused, which leaves nothing running here",
    ),
    (
        r"test_tensorflow, .*, Keras 3",
        r"test_partial_distributed_gradient_tape$|test_horovod_syncbn_cpu$",
        "was written for tf-keras: of Keras 3, variables have no ref() and BatchNormalization no "
        "fused=",
    ),
    (
        r"lightning 1\.9\.5, .*",
        r"test_horovod_multi_optimizer$",
        "downloads MNIST",
    ),
    (
        r"lightning-horovod",
        r"test_model_script$",
        "turns a FutureWarning of this torch, met by its Lightning, into an error",
    ),
)
"""Pattern of the suite's whole name, of a part of the test's name, and the reason."""


def reason(suite: str, test: str) -> str:
    """Return why ``test`` of ``suite`` fails, "" where it should not."""
    found = (
        why
        for suites, tests, why in EXCEPTIONS
        if re.fullmatch(suites, suite) and re.search(tests, test)
    )
    return next(found, "")
