from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.bayes import BayesianOptimizer
from autotune.bayes.encoding import SearchSpace, dimension, next_power_of_two
from autotune.space import BY_NAME, PARAMETERS, Parameter
from autotune.trial import CommParams

MIB = 2**20
RESNET = {"tensors": 161, "payload": 102 * MIB}
REDUCING = SearchSpace(CommParams(), frozen={"hierarchical_allgather"}, **RESNET)


def values(space: SearchSpace, name: str) -> tuple:
    return next(d.values for d in space.dimensions if d.parameter.name == name)


def test_default_is_one_of_the_candidates():
    space = SearchSpace(CommParams(), **RESNET)
    distance = np.abs(space.candidates - space.encode(CommParams())).max(axis=1)
    (row,) = np.flatnonzero(distance < 1e-9)
    assert space.decode(int(row)) == CommParams()


def test_every_candidate_encodes_to_its_own_row():
    space = SearchSpace(CommParams(), frozen={"hierarchical_allgather"}, **RESNET)
    for row in range(0, space.size, 7):
        assert np.allclose(space.encode(space.decode(row)), space.candidates[row])


def test_candidates_lie_in_the_unit_cube_and_differ():
    space = SearchSpace(CommParams(), **RESNET)
    assert space.candidates.min() == 0 and space.candidates.max() == 1
    assert len(np.unique(space.candidates.round(9), axis=0)) == space.size


def test_short_cycles_and_no_fusion_are_reachable():
    space = SearchSpace(CommParams(), **RESNET)
    assert values(space, "cycle_time_ms")[0] == 0.1
    assert values(space, "fusion_threshold_bytes")[0] == 0


def test_thresholds_are_whole_kib_and_cycles_have_two_digits():
    space = SearchSpace(CommParams())
    assert all(value % 1024 == 0 for value in values(space, "fusion_threshold_bytes"))
    assert all(float(f"{v:.2g}") == v for v in values(space, "cycle_time_ms"))


def test_whole_search_domain_is_offered_where_the_payload_is_unknown():
    space = SearchSpace(CommParams())
    thresholds = values(space, "fusion_threshold_bytes")
    assert thresholds[1] == 64 * 1024 and thresholds[-1] == 512 * MIB


def test_thresholds_above_the_payload_stand_in_the_grid_once():
    space = SearchSpace(CommParams(), tensors=10, payload=3 * MIB)
    thresholds = values(space, "fusion_threshold_bytes")
    assert [value for value in thresholds if value >= 3 * MIB] == [64 * MIB]


@pytest.mark.parametrize(
    "tensors, expected",
    [(0, (0, 1024)), (161, (0, 1024)), (1024, (0, 1024)), (1500, (0, 1024, 2048))],
)
def test_cache_is_off_default_or_large_enough(tensors, expected):
    space = SearchSpace(CommParams(), tensors=tensors, payload=MIB)
    assert values(space, "cache_capacity") == expected


def test_frozen_parameters_keep_the_values_of_the_default():
    default = CommParams(cycle_time_ms=2.5, cache_capacity=77)
    space = SearchSpace(default, frozen={"cycle_time_ms", "cache_capacity"}, **RESNET)
    for row in range(0, space.size, 11):
        assert space.decode(row).cycle_time_ms == 2.5
        assert space.decode(row).cache_capacity == 77


def test_a_space_without_free_parameters_has_one_setting():
    space = SearchSpace(CommParams(), frozen={p.name for p in PARAMETERS}, **RESNET)
    assert space.size == 1 and space.candidates.shape == (1, 0)
    assert space.decode(0) == CommParams()
    assert len(space.untried([CommParams()])) == 0


def test_a_default_off_the_grid_is_added_to_it():
    parameter = BY_NAME["cycle_time_ms"]
    grid = dimension(parameter, default=1.2345, tensors=0, payload=0)
    assert 1.2345 in grid.values and grid.values == tuple(sorted(grid.values))


def test_settings_that_behave_alike_count_as_tried_together():
    space = SearchSpace(CommParams(), **RESNET)
    alike = CommParams(fusion_threshold_bytes=400 * MIB, cache_capacity=4096)
    same = CommParams(fusion_threshold_bytes=102 * MIB, cache_capacity=256)
    assert len(space.untried([alike])) == space.size - 1
    assert list(space.untried([alike])) == list(space.untried([same]))


def test_decoded_settings_are_json_safe():
    space = SearchSpace(CommParams(), **RESNET)
    for row in range(0, space.size, 13):
        assert json.loads(json.dumps(space.decode(row).as_dict()))


@given(
    cycle=st.floats(0, 10_000),
    threshold=st.integers(0, 2**40),
    capacity=st.integers(0, 2**20),
)
def test_every_valid_setting_has_a_place_in_the_unit_cube(cycle, threshold, capacity):
    params = CommParams(
        cycle_time_ms=cycle, fusion_threshold_bytes=threshold, cache_capacity=capacity
    )
    point = REDUCING.encode(params)
    assert np.all((point >= 0) & (point <= 1))


@given(st.integers(1, 2**20))
def test_next_power_of_two_is_the_smallest_that_holds(count):
    power = next_power_of_two(count)
    assert count <= power < 2 * count and power & (power - 1) == 0


# ---- another table ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Other:
    """A setting of a table that has nothing to do with communication."""

    depth: int = 3
    angle: float = 0.0

    def as_dict(self) -> dict:
        return dataclasses.asdict(self)

    def with_values(self, values) -> Other:
        return dataclasses.replace(self, **values)


def row(name: str, kind: type, low: float, high: float) -> Parameter:
    return Parameter(
        name=name, unit="", type=kind, default=0, valid_low=low, valid_high=high, search_low=low,
        search_high=high, scale="linear", word=name, env="", flag="", column="",
    )  # fmt: skip


TABLE = (row("depth", int, 0, 7), row("angle", float, -5, 5))


def test_any_table_makes_a_space():
    space = SearchSpace(Other(), parameters=TABLE)
    assert values(space, "depth") == tuple(range(8))
    assert min(values(space, "angle")) == -5 and max(values(space, "angle")) == 5
    assert 0.0 in values(space, "angle")
    for k in range(0, space.size, 5):
        assert np.allclose(space.encode(space.decode(k)), space.candidates[k])


def test_an_optimizer_finds_the_best_of_any_table():
    space = SearchSpace(Other(), parameters=TABLE)
    optimizer = BayesianOptimizer(space, rng=np.random.default_rng(0))
    optimizer.tell(Other(), 0.0, 0.0)
    for _ in range(14):
        optimizer.learn()
        setting = optimizer.ask().params
        height = 0.05 * (9 + 4 - (setting.depth - 6) ** 2 - (setting.angle - 2) ** 2)
        optimizer.tell(setting, height)
    best = optimizer.incumbent().params
    assert abs(best.depth - 6) <= 1 and abs(best.angle - 2) <= 1
