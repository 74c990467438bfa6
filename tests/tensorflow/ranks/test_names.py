"""The names and signatures of Horovod 0.28.1 that wrapped optimizers and tapes, callbacks and
broadcasts have."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import horovod.keras
import horovod.tensorflow as hvd
import horovod.tensorflow.keras

SET = "process_set=global_process_set"
DEVICES = "device_dense='', device_sparse=''"
GROUPS = "num_groups=0, groups=None"
TAPE = (
    f"gradtape, {DEVICES}, compression=Compression.none, sparse_as_dense=False, op=Average, "
    f"gradient_predivide_factor=1.0, {GROUPS}, {SET}"
)
KERAS = (
    f"optimizer, name=None, {DEVICES}, compression=Compression.none, sparse_as_dense=False, "
    "gradient_predivide_factor=1.0, op=Average, backward_passes_per_step=1, "
    "average_aggregated_gradients=False"
)
TENSORFLOW = {
    "DistributedGradientTape": f"{TAPE}, scale_local_gradients=True",
    "PartialDistributedGradientTape": f"{TAPE}, local_layers=None, scale_local_gradients=True",
    "DistributedOptimizer": f"optimizer, name=None, use_locking=False, {DEVICES}, "
    "compression=Compression.none, sparse_as_dense=False, backward_passes_per_step=1, op=Average, "
    "gradient_predivide_factor=1.0, average_aggregated_gradients=False, "
    f"{GROUPS}, {SET}, scale_local_gradients=True",
    "broadcast_variables": f"variables, root_rank, {SET}, inplace=False",
    "broadcast_global_variables": "root_rank",
    "broadcast_object": f"obj, root_rank=0, session=None, name=None, {SET}",
    "broadcast_object_fn": f"root_rank=0, session=None, name=None, {SET}",
    "allgather_object": f"obj, session=None, name=None, {SET}",
}
OF_KERAS = {
    "DistributedOptimizer": f"{KERAS}, {GROUPS}, {SET}, scale_local_gradients=True",
    "PartialDistributedOptimizer": f"{KERAS}, groups=None, {SET}, local_layers=None, "
    "scale_local_gradients=True",
    "broadcast_global_variables": "root_rank",
    "allreduce": "value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, "
    "op=None, compression=Compression.none",
    "allgather": "value, name=None",
    "broadcast": "value, root_rank, name=None",
    "reducescatter": "value, name=None, op=Average",
    "load_model": "filepath, custom_optimizers=None, custom_objects=None, "
    "compression=Compression.none",
}
CALLBACKS = {
    "BroadcastGlobalVariablesCallback": "root_rank, device='', local_variables=None",
    "MetricAverageCallback": "device=''",
    "LearningRateScheduleCallback": "initial_lr, multiplier, start_epoch=0, end_epoch=None, "
    "staircase=True, momentum_correction=True, steps_per_epoch=None",
    "LearningRateWarmupCallback": "initial_lr, warmup_epochs=5, momentum_correction=True, "
    "steps_per_epoch=None, verbose=0",
    "BestModelCheckpoint": "monitor='val_loss', verbose=0, save_weights_only=False, mode='auto', "
    "save_freq='epoch'",
}
KERAS_MODULES = (horovod.keras, horovod.tensorflow.keras)
CASES = [
    *((hvd, name, text) for name, text in TENSORFLOW.items()),
    *((module, name, text) for module in KERAS_MODULES for name, text in OF_KERAS.items()),
    *(
        (module.callbacks, name, text)
        for module in KERAS_MODULES
        for name, text in CALLBACKS.items()
    ),
]


@pytest.mark.parametrize(("module", "name", "text"), CASES, ids=lambda case: str(case)[:40])
def test_signatures_are_horovods(module: Any, name: str, text: str) -> None:
    """All parameters with their order and defaults; we may add some at the end."""
    names = {n: getattr(hvd, n) for n in ("Average", "Compression", "global_process_set")}
    wanted = inspect.signature(eval(f"lambda {text}: 0", names)).parameters.values()
    found = list(inspect.signature(getattr(module, name)).parameters.values())
    assert [(p.name, p.default) for p in found][: len(wanted)] == [
        (p.name, p.default) for p in wanted
    ]
    assert all(p.default is not p.empty for p in found[len(wanted) :])


@pytest.mark.parametrize("module", KERAS_MODULES, ids=["keras", "tensorflow.keras"])
def test_every_exported_name_exists_and_is_sorted(module: Any) -> None:
    assert list(module.__all__) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    for name in ("rank", "size", "local_rank", "init", "shutdown", "mpi_enabled", "Sum", "Average"):
        assert name in module.__all__


@pytest.mark.parametrize("path", ["tensorflow", "tensorflow.keras", "keras"])
def test_what_elastic_scripts_import_is_there(path: str) -> None:
    elastic = importlib.import_module(f"horovod.{path}.elastic")
    of_keras = {"CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"}
    wanted = {"run", *({"KerasState", *of_keras} if "keras" in path else ())}
    wanted |= {"TensorFlowState", "TensorFlowKerasState"} if path == "tensorflow" else set()
    assert wanted <= set(dir(elastic))
    assert wanted <= set(elastic.__all__)


def test_every_call_that_the_document_names_exists() -> None:
    document = Path(__file__).parents[3] / "docs" / "tensorflow.md"
    paths = set(re.findall(r"\bhvd((?:\.\w+)+)", document.read_text(encoding="utf-8")))
    assert len(paths) > 15
    for path in sorted(paths):
        found: list[Any] = [hvd, horovod.tensorflow.keras]
        for name in path.split(".")[1:]:
            found = [getattr(one, name) for one in found if hasattr(one, name)]
        assert found, f"hvd{path}"
