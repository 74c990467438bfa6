"""The engine and the tuner mean the same: parameters, their defaults and units, and constants."""

from __future__ import annotations

import pytest

from autotune.costmodel import collectives, engine
from autotune.space import PARAMETERS
from autotune.tables.nccl import NCCL_PARAMETERS
from horovod.tuning.table import ENGINE_PARAMETERS

_engine = pytest.importorskip("horovod._engine")


def test_the_engines_parameters_are_the_rows_of_the_table() -> None:
    fields = {name: (unit, default) for name, unit, default in _engine.Params.fields()}
    assert fields == {row.name: (row.unit, row.default) for row in ENGINE_PARAMETERS}
    assert {name: type(default) for name, (_, default) in fields.items()} == {
        row.name: row.type for row in ENGINE_PARAMETERS
    }


def test_params_have_every_field_by_name_and_no_other() -> None:
    values = {row.name: row.type(2) for row in PARAMETERS}
    params = _engine.Params(**values)
    assert {name: getattr(params, name) for name in values} == values
    for name in values:
        with pytest.raises(TypeError, match=name):
            _engine.Params(**{key: value for key, value in values.items() if key != name})
    with pytest.raises(TypeError, match="does not have"):
        _engine.Params(**values, more=1)


def test_what_only_other_tables_have_may_be_left_out() -> None:
    values = {row.name: row.type(2) for row in PARAMETERS}
    params = _engine.Params(**values)
    assert [getattr(params, row.name) for row in NCCL_PARAMETERS] == [0, 0, 0]
    params = _engine.Params(**values, nccl_channels=16)
    assert params.nccl_channels == 16 and params.nccl_algorithm == 0


def test_options_begin_with_the_tables_defaults() -> None:
    params = _engine.Options().params
    assert all(getattr(params, row.name) == row.default for row in PARAMETERS)


def test_the_cost_models_constants_are_the_engines() -> None:
    assert engine.IN_PLACE_BYTES == _engine.IN_PLACE_BYTES
    assert collectives.PIECE_BYTES == _engine.PIECE_BYTES
    assert collectives.SMALL_BYTES == _engine.SMALL_BYTES
