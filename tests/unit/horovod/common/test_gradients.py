"""What wrapped optimizers and tapes have in common, whatever framework their gradients are of."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

pytest.importorskip("horovod._engine")

from horovod.common.compression import NoneCompressor
from horovod.common.gradients import (
    Options,
    make_options,
    operation_names,
    positions_of_groups,
    underlying,
)
from horovod.common.process_set import global_process_set
from horovod.common.reduce_ops import Adasum, Average, Sum
from horovod.common.variables import short_name


class Named:
    def __init__(self, name: str, path: str | None = None) -> None:
        self.name = name
        if path is not None:
            self.path = path


def options(**given: Any) -> Options:
    arguments: dict[str, Any] = {
        "compression": NoneCompressor,
        "op": Average,
        "gradient_predivide_factor": 1.0,
        "sparse_as_dense": False,
        "num_groups": 0,
        "groups": None,
        "process_set": global_process_set,
    }
    return make_options("caller", **(arguments | given))


def test_names_do_not_count_what_a_rank_has_made_before() -> None:
    assert short_name(Named("kernel:0", "seq_3/dense_12/kernel")) == "seq/dense/kernel"
    assert short_name(Named("dense_1/bias:0")) == "dense/bias"
    assert short_name(Named("layer2a/w1:0")) == "layer2a/w1"
    one, other = (
        operation_names("optimizer.0", [Named("dense/kernel:0"), Named(f"dense_{i}/kernel:0")])
        for i in (1, 7)
    )
    assert one == other
    assert len(set(one)) == 2


@pytest.mark.parametrize("groups", [None, 1, 3, 5, 100])
def test_every_gradient_is_in_one_group(groups: int | None) -> None:
    wanted = [0, 2, 3, 4, 6]
    found = positions_of_groups(groups, [Named(str(i)) for i in range(7)], wanted)
    assert list(chain.from_iterable(found)) == wanted
    assert len(found) == (5 if groups is None else min(groups, 5))
    assert positions_of_groups(3, [], []) == []


def test_groups_of_variables_keep_their_order_and_others_are_alone() -> None:
    variables = [Named(str(i)) for i in range(5)]
    groups = [[variables[4], variables[1]], [variables[0]], [Named("stranger")]]
    assert positions_of_groups(groups, variables, [0, 1, 2, 4]) == [[4, 1], [0], [2]]


def test_a_variable_that_keras_has_wrapped_is_the_one_within() -> None:
    inner, outer = Named("inner"), Named("outer")
    outer._value = inner  # type: ignore[attr-defined]
    assert underlying(outer) is underlying(inner) is inner


def test_factors_cancel_each_other() -> None:
    made = options(gradient_predivide_factor=4.0)
    assert (made.prescale_factor, made.postscale_factor) == (0.25, 4.0)


def test_the_older_name_of_groups_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="use groups"):
        assert options(num_groups=3).groups == 3


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"op": 6}, "op: expected Average"),
        ({"op": Sum, "gradient_predivide_factor": 2.0}, "only with op=Average"),
        ({"gradient_predivide_factor": -1.0}, "expected a number > 0, got -1"),
        ({"op": Adasum, "average_passes": True}, "not with op=Adasum"),
        ({"passes": 0}, "a whole number > 0, got 0"),
        ({"passes": True}, "a whole number > 0, got True"),
        ({"passes": 1.5}, "a whole number > 0, got 1.5"),
        ({"groups": -1}, "a number > 0 or lists of variables, got -1"),
        ({"groups": "x"}, "a number or lists of variables, got 'x'"),
    ],
)
def test_a_wrong_argument_is_one_sentence_of_its_caller(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^caller: .*{text}"):
        options(**given)
