"""Operations get the same names on all ranks, and what is kept for them does not grow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("horovod._engine")

from horovod import _engine
from horovod.common import operation
from horovod.common.operation import How, Kept, full_name, make_kind, set_number, take_name_back
from horovod.common.process_set import ProcessSet
from horovod.common.reduce_ops import ENGINE_NAMES, Average, Product


@pytest.fixture(autouse=True)
def no_names_so_far() -> Iterator[None]:
    operation.forget()
    yield
    operation.forget()


def test_a_name_is_prefixed_and_not_counted() -> None:
    assert full_name("allreduce", "x", 0) == full_name("allreduce", "x", 0) == "allreduce.x"
    assert full_name("allreduce", None, 0) == "allreduce.noname.0"


def test_unnamed_operations_are_counted_by_kind_and_process_set() -> None:
    wanted = [("allreduce", 0), ("allreduce", 0), ("broadcast", 0), ("allreduce", 3)]
    names = [full_name(kind, None, number) for kind, number in wanted]
    assert names == [
        f"{kind}.noname.{i}" for (kind, _), i in zip(wanted, (0, 1, 0, 0), strict=True)
    ]


def test_what_was_refused_does_not_count() -> None:
    full_name("allreduce", None, 0)
    take_name_back("allreduce", None, 0)
    take_name_back("allreduce", "x", 0)
    assert full_name("allreduce", None, 0) == "allreduce.noname.0"


def test_equal_descriptions_are_the_same_operation_and_others_are_not() -> None:
    how = How("allreduce", "x", op=Average)
    assert {how: 1}[How("allreduce", "x", op=Average)] == 1
    others = [
        *(how._replace(operation="broadcast"), how._replace(name="y"), how._replace(op=Product)),
        *(how._replace(process_set=ProcessSet([0])), how._replace(prescale=2.0)),
        *(how._replace(postscale=2.0), how._replace(root_rank=1), how._replace(wire_type="x")),
        how._replace(may_compress=True),
    ]
    assert len({how, *others}) == 1 + len(others) == 1 + len(How._fields)


def test_a_set_that_is_not_registered_has_no_number() -> None:
    process_set = ProcessSet([0, 1])
    with pytest.raises(ValueError, match="is not registered"):
        set_number(process_set)
    process_set.attach(4, [0, 1], 0)
    assert set_number(process_set) == 4


@pytest.mark.parametrize("op", range(len(ENGINE_NAMES)))
def test_the_engine_knows_every_reduction(op: int) -> None:
    assert isinstance(make_kind(How("allreduce", "x", op=op), 0, "float32"), _engine.Kind)


def test_what_is_kept_stays_below_its_bound_and_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operation, "MOST_KEPT", 3)
    kept: Kept[int, str] = Kept()
    for key in range(10):
        kept.keep(key, str(key))
        assert kept[key] == str(key)
        assert len(kept) <= 3
    operation.forget()
    assert not kept


def test_what_outlives_an_engine_is_told_of_its_end_while_it_lives() -> None:
    told: list[str] = []

    class Told:
        def __init__(self, name: str) -> None:
            self.name = name
            operation.forget_with_the_engine(self)

        def forget(self) -> None:
            told.append(self.name)

    kept, gone = Told("kept"), Told("gone")
    del gone
    operation.forget()
    operation.forget()
    assert told == [kept.name] * 2
