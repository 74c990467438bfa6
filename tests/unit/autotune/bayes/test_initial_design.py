from __future__ import annotations

import numpy as np

from autotune.bayes.encoding import SearchSpace
from autotune.bayes.initial_design import halton, initial_design, radical_inverse
from autotune.trial import CommParams

SPACE = SearchSpace(CommParams(), tensors=161, payload=2**26)


def test_radical_inverse_mirrors_the_digits():
    assert [radical_inverse(k, 2) for k in (1, 2, 3, 4)] == [0.5, 0.25, 0.75, 0.125]


def test_halton_points_spread_better_than_chance():
    points = halton(64, 2, shift=np.array([0.3, 0.7]))
    counts = np.histogram2d(*points.T, bins=4, range=[[0, 1], [0, 1]])[0]
    assert counts.min() >= 2


def test_points_of_the_design_differ():
    rows = initial_design(SPACE.candidates, 8, rng=np.random.default_rng(0))
    assert len(rows) == len(set(rows)) == 8


def test_design_depends_on_the_generator_only():
    first, again, other = (
        initial_design(SPACE.candidates, 6, rng=np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_small_grid_gives_what_it_has():
    grid = np.array([[0.0], [1.0]])
    rows = initial_design(grid, 5, rng=np.random.default_rng(0))
    assert sorted(rows) == [0, 1]


def test_a_space_without_dimensions_has_no_second_point():
    assert initial_design(np.zeros((1, 0)), 0, rng=np.random.default_rng(0)) == []
