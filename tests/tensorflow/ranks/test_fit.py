"""``fit`` with a DistributedOptimizer: n ranks on shards give what one gives on the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from keras_training import (
    BATCH,
    IS_LEGACY,
    OPTIMIZERS,
    STEPS,
    assert_equal_on_all_ranks,
    assert_same,
    data,
    fit_shards,
    fit_whole,
    model,
    shard,
)

import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import tensorflow as tf
from horovod import _engine
from horovod.common import basics

MODES: dict[str, dict[str, Any]] = {
    "graph": {},
    "eager": {"run_eagerly": True},
    "four_steps": {"steps_per_execution": 4},
    "an_epoch": {"steps_per_execution": STEPS},
}
optimizers = tf.keras.optimizers


@pytest.mark.parametrize(
    ("make", "mode"), [("sgd", "graph"), *(("adam_clipped", mode) for mode in MODES)]
)
def test_shards_give_the_weights_of_the_whole_batch(make: str, mode: str) -> None:
    ours = fit_shards(hvd.DistributedOptimizer(OPTIMIZERS[make]()), **MODES[mode])
    assert_same(ours, fit_whole(make))
    assert_equal_on_all_ranks(ours)


@pytest.mark.parametrize("mode", ["graph", "four_steps"])
def test_parameters_that_change_all_the_while_change_no_weight(
    two_ranks: None, rank: int, mode: str
) -> None:
    hvd.shutdown()
    hvd.init()
    engine, rng = basics.engine(), np.random.default_rng(5)
    first = engine.epoch()

    class Changes(tf.keras.callbacks.Callback):
        epoch = first

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            params = _engine.Params(
                fusion_threshold_bytes=int(rng.choice([0, 100, 1000, 10_000, 1 << 29])),
                cycle_time_ms=float(rng.choice([0.0, 0.1, 1.0, 5.0])),
                cache_capacity=int(rng.choice([0, 2, 8, 1024])),
                hierarchical_allreduce=bool(rng.integers(2)),
                hierarchical_allgather=False,
            )
            if rank == 0:
                self.epoch += 1
                engine.propose(self.epoch, params)

    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["adam_clipped"]())
    ours = fit_shards(optimizer, 6, callbacks=[Changes()], **MODES[mode])
    assert engine.epoch() > first
    assert_same(ours, fit_whole("adam_clipped", 6))


@pytest.mark.parametrize(
    ("make", "mode", "average"),
    [
        ("sgd", "graph", False),
        ("adam_clipped", "graph", True),
        ("adam_clipped", "eager", True),
        ("adam_clipped", "an_epoch", True),
    ],
)
def test_accumulated_passes_are_one_step_of_a_larger_batch(
    make: str, mode: str, average: bool
) -> None:
    """A sum of k passes is a step whose loss is k times the average of a batch k times as large."""
    x, y = data()
    net = model()

    def loss(true: Any, found: Any) -> Any:
        return (1.0 if average else 2.0) * tf.reduce_mean(tf.square(true - found), -1)

    net.compile(OPTIMIZERS[make](), loss)
    net.fit(x, y, batch_size=2 * BATCH, epochs=2, shuffle=False, verbose=0)
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[make](), backward_passes_per_step=2, average_aggregated_gradients=average
    )
    assert_same(fit_shards(optimizer, **MODES[mode]), net.get_weights())
    assert int(optimizer.iterations.numpy()) == (2 * STEPS if IS_LEGACY else STEPS)


@pytest.mark.parametrize("options", [{"groups": 2}, {"num_groups": 100}])
@pytest.mark.filterwarnings("ignore:num_groups is deprecated")
def test_groups_change_no_weight(options: dict[str, int]) -> None:
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), **options)
    assert_same(fit_shards(optimizer), fit_whole("sgd"))


def test_lists_of_variables_are_groups() -> None:
    net = model()
    groups = [net.trainable_variables[:3], net.trainable_variables[4:]]
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), groups=groups)
    assert_same(fit_shards(optimizer, net=net), fit_whole("sgd"))


def test_a_factor_before_and_after_the_sum_changes_no_weight() -> None:
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), gradient_predivide_factor=2.0)
    assert_same(fit_shards(optimizer), fit_whole("sgd"))


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compressed_gradients_are_near(compression: str) -> None:
    short = getattr(hvd.Compression, compression)
    ours = fit_shards(hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), compression=short))
    assert_same(ours, fit_whole("sgd"), 0.02)
    assert_equal_on_all_ranks(ours)


@pytest.mark.parametrize(("mode", "dense"), [("graph", True), ("graph", False), ("eager", False)])
def test_sparse_gradients_of_an_embedding(mode: str, dense: bool, rank: int, size: int) -> None:
    def make_net() -> Any:
        net = tf.keras.Sequential(
            [
                tf.keras.layers.Input((4,), dtype="int32"),
                tf.keras.layers.Embedding(50, 3),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(3),
            ]
        )
        net.set_weights([np.full(w.shape, 0.1, np.float32) for w in net.get_weights()])
        return net

    rows = np.random.default_rng(2).integers(0, 50, (BATCH * STEPS, 4)).astype(np.int32)
    _, y = data()
    whole, ours = make_net(), make_net()
    whole.compile(optimizers.SGD(0.05, momentum=0.9), "mse", **MODES[mode])
    whole.fit(rows, y, batch_size=BATCH, shuffle=False, verbose=0)
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.05, momentum=0.9), sparse_as_dense=dense)
    ours.compile(optimizer, "mse", **MODES[mode])
    ours.fit(shard(rows), shard(y), batch_size=BATCH // size, shuffle=False, verbose=0)
    assert_same(ours.get_weights(), whole.get_weights())


@pytest.mark.parametrize(("mode", "scale"), [("graph", True), ("eager", False)])
def test_gradients_of_local_layers_stay_on_their_rank(
    mode: str, scale: bool, rank: int, size: int
) -> None:
    net, alone = model(), model()
    optimizer = hvd_keras.PartialDistributedOptimizer(
        optimizers.SGD(0.05), local_layers=net.layers[0], scale_local_gradients=scale
    )
    x, y = (shard(values)[: BATCH // size] for values in data())
    net.compile(optimizer, "mse", **MODES[mode])
    net.fit(x, y, batch_size=BATCH // size, verbose=0)
    alone.compile(optimizers.SGD(0.05), "mse")
    before = alone.get_weights()
    alone.fit(x, y, batch_size=BATCH // size, verbose=0)
    factor = 1 / size if scale else 1.0
    for ours, own, old in zip(
        net.get_weights()[:2], alone.get_weights()[:2], before[:2], strict=True
    ):
        assert np.allclose(ours - old, (own - old) * factor, atol=1e-6)
    assert_equal_on_all_ranks(net.get_weights()[2:])


def test_steps_are_found_without_a_call(two_ranks: None) -> None:
    hvd.shutdown()
    hvd.init()
    fit_shards(hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()), epochs=4)
    records, signatures = basics.engine().drain_steps()
    sizes = {number: len(operations) for number, operations in signatures}
    counts = [record.count for record in records if sizes.get(record.signature) == 6]
    assert sum(counts) > 2 * STEPS  # six weights


@pytest.mark.skipif(not IS_LEGACY, reason="optimizers of tf-keras")
def test_older_optimizers_give_the_weights_of_the_whole_batch() -> None:
    older = tf.keras.optimizers.legacy.SGD(0.05, momentum=0.9)
    assert_same(fit_shards(hvd.DistributedOptimizer(older)), fit_whole("sgd"))
