"""Which steps are taken for the training steps, and what is said when there are none."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from autotune.tuning.steps.identify import (
    FOUND_STEPS,
    IDENTIFY_STEPS,
    LONGEST_GROUP,
    LONGEST_RECENT_EXPLICIT,
    PATIENCE_STEPS,
    RECENT_STEPS,
    Identifier,
)
from autotune.tuning.steps.records import StepRecord

A, B, C, LOOP, EVALUATION = 1, 2, 3, 8, 9


def record(signature: int, *, count: int = 1, ms: float = 10.0, **fields: object) -> StepRecord:
    usual = {"step": 0, "payload_bytes": 1000 * count, "exposed_us": 5.0 * count, "epoch": 0}
    return StepRecord(
        **(usual | {"count": count, "duration_us": 1000 * ms * count} | fields), signature=signature
    )


def feed(identifier: Identifier, signatures: Iterable[int], **fields: object) -> list[int | None]:
    """Add a step of each; return what the training signature became, and when it changed to."""
    became = []
    for signature in signatures:
        if identifier.add(record(signature, **fields)):
            became.append(identifier.signature)
    return became


def completed(identifier: Identifier, signatures: Iterable[int]) -> list[StepRecord]:
    steps = []
    for signature in signatures:
        identifier.add(record(signature))
        steps += identifier.completed
    return steps


# ---- one kind -----------------------------------------------------------------------------------


def test_the_most_frequent_signature_is_the_training_step():
    identifier = Identifier()
    assert feed(identifier, [8, 8, 8, 1, 1, 1, 1, 1, 1]) == [1]
    assert (identifier.signature, identifier.parts) == (1, (1,))
    assert identifier.steps_seen == 9


def test_steps_without_payload_and_paused_ones_are_never_training_steps():
    identifier = Identifier()
    assert feed(identifier, [A] * 50, payload_bytes=0) == []
    assert feed(identifier, [0] * 50) == []


def test_merged_steps_count_as_many():
    assert Identifier().add(record(A, count=7))


def test_the_record_that_makes_it_known_and_those_after_it_are_training_steps():
    identifier = Identifier()
    assert completed(identifier, [A] * (IDENTIFY_STEPS - 1)) == []
    assert len(completed(identifier, [A, EVALUATION, A])) == 2


def test_many_odd_steps_before_training_do_not_delay_it():
    identifier = Identifier()
    feed(identifier, range(100, 600))
    assert feed(identifier, [A] * RECENT_STEPS) == [A]


def test_a_loop_before_training_has_to_be_long_to_be_taken_for_it():
    identifier = Identifier()
    assert feed(identifier, [LOOP] * (FOUND_STEPS - 1), is_explicit=False) == []
    assert feed(identifier, [LOOP], is_explicit=False) == [LOOP]


# ---- U19: what takes over -----------------------------------------------------------------------


@pytest.mark.parametrize("before", [20, 100, 5000])
def test_what_an_optimizer_ends_replaces_at_once_what_was_found(before):
    identifier = Identifier()
    feed(identifier, [LOOP] * before, is_explicit=False)
    assert feed(identifier, [A] * IDENTIFY_STEPS) == [A]


@pytest.mark.parametrize("before", [5, 60, 10_000])
def test_a_kind_that_takes_over_is_learned(before):
    identifier = Identifier()
    feed(identifier, [A] * before)
    assert feed(identifier, [B] * LONGEST_RECENT_EXPLICIT) == [B]
    assert feed(identifier, [B] * 1000) == []


def test_a_kind_that_takes_over_need_not_be_the_only_one():
    identifier = Identifier()
    feed(identifier, [A] * 50)
    assert feed(identifier, ([B] * 10 + [A]) * 30) == [B]


def test_the_training_step_may_change_many_times():
    identifier = Identifier()
    assert feed(identifier, ([A] * 200 + [B] * 200) * 3) == [A, B, A, B, A, B]


def test_short_steps_that_are_merged_take_over_as_well():
    identifier = Identifier()
    identifier.add(record(A, count=100_000))
    assert identifier.add(record(B, count=100_000))


@pytest.mark.parametrize("evaluation", [1, 3, 50])
def test_evaluations_never_take_over(evaluation):
    identifier = Identifier()
    steps = [A] * 100 + ([EVALUATION] * evaluation + [A] * 100) * 20
    assert feed(identifier, steps, is_explicit=False) == [A]


def test_evaluations_are_no_part_of_the_training_step():
    identifier = Identifier()
    steps = completed(identifier, ([A] * 10 + [EVALUATION]) * 30)
    assert identifier.parts == (A,)
    assert {step.signature for step in steps} == {A}


# ---- U20, U11: turns ----------------------------------------------------------------------------


@pytest.mark.parametrize("group", [(A, B), (A, B, C), (A, A, B, B), tuple(range(1, 9))])
def test_steps_that_take_turns_are_one_training_step(group):
    identifier = Identifier()
    steps = completed(identifier, group * 50)
    assert sorted(identifier.parts) == sorted(group)
    assert len(steps) >= 40
    for step in steps:
        assert (step.count, step.payload_bytes) == (1, 1000 * len(group))
        assert step.duration_us == pytest.approx(10_000 * len(group))
        assert step.exposed_us == pytest.approx(5 * len(group))
        assert step.signature == identifier.signature not in group


def test_a_group_has_one_signature_wherever_it_begins():
    signatures = set()
    for first in range(3):
        identifier = Identifier()
        feed(identifier, ((A, B, C) * 40)[first:])
        signatures.add(identifier.signature)
    assert len(signatures) == 1
    assert 0 < signatures.pop() < 2**53


def test_a_group_that_an_evaluation_cuts_is_not_scored_and_the_next_one_is():
    identifier = Identifier()
    feed(identifier, [A, B] * 20)
    count = len(completed(identifier, [A, EVALUATION, B, A, B, A, EVALUATION, EVALUATION, A, B]))
    assert count in (1, 2)  # by where the group begins
    assert identifier.parts in ((A, B), (B, A))


def test_merged_records_are_taken_apart_for_a_group():
    identifier = Identifier()
    for number in range(100):
        identifier.add(record((A, B)[number % 2], count=2, samples=64))
    assert sorted(identifier.parts) == [A, A, B, B]
    assert identifier.completed == [] or identifier.completed[0].samples == 128


def test_a_group_in_which_the_setting_changes_belongs_to_no_epoch():
    identifier = Identifier()
    feed(identifier, [A, B] * 20)
    epochs = []
    for number, signature in enumerate([A, B] * 10):
        identifier.add(record(signature, epoch=0 if number < 9 else 1))
        epochs += [step.epoch for step in identifier.completed]
    assert set(epochs) <= {0, -1, 1} and epochs.count(-1) <= 1
    assert epochs[0] == 0 and epochs[-1] == 1


def test_turns_take_over_and_give_way():
    identifier = Identifier()
    became = feed(identifier, [A] * 200 + [B, C] * 200 + [A] * 200)
    assert len(became) == 3 and became[0] == became[2] == A


def test_a_kind_that_remains_every_other_step_stays_the_training_step():
    identifier = Identifier()
    assert feed(identifier, [A] * 50 + [A, B] * 200) == [A]


# ---- jobs without a training step ---------------------------------------------------------------


def odd_steps(count: int) -> list[int]:
    return random.Random(0).choices(range(100, 120), k=count)


def test_steps_of_many_kinds_are_no_training_steps_and_it_is_said_once():
    identifier = Identifier()
    assert feed(identifier, odd_steps(PATIENCE_STEPS - 1)) == []
    assert identifier.complaint() is None
    feed(identifier, odd_steps(1))
    seen = identifier.complaint()
    assert seen is not None and identifier.complaint() is None
    assert (seen.steps, seen.trained) == (PATIENCE_STEPS, 0)
    assert seen.largest < seen.recent and 1 < seen.kinds <= seen.recent
    feed(identifier, odd_steps(1000))
    assert identifier.complaint() is None


def live(steps: Iterable[tuple[int, int]]) -> int | None:
    """Run steps of (kind, whole seconds) with a wait each second, as the service does.

    Returns:
        Second in which there was a complaint about them; None: there was none.
    """
    identifier, second = Identifier(), 0
    for signature, seconds in steps:
        for _ in range(seconds):
            second += 1
            identifier.wait(1.0, communicates=True)
            if identifier.complaint() is not None and identifier.steps_seen:
                return second
        identifier.add(record(signature, ms=1000 * seconds))
        if identifier.complaint() is not None:
            return second
    return None


def odd(seconds: int) -> list[tuple[int, int]]:
    return [(kind, seconds) for kind in range(100, 350)]


@pytest.mark.parametrize(
    "steps",
    [
        odd(2),
        odd(21),
        odd(40),
        [(A, 55), *odd(2)],
        [(A, 59), *odd(1)],
        [(A, 20)] + [(B, 40), (C, 40)] * 5,
        [(A, 2)] * IDENTIFY_STEPS + odd(2),
        [(A, 2)] * IDENTIFY_STEPS + odd(3),
    ],
)
def test_it_is_said_within_the_first_minute_whatever_steps_take(steps):
    assert live(steps) == 60


def test_a_kind_that_comes_no_more_is_a_reason_once_the_others_are_many():
    assert live([(A, 10)] * IDENTIFY_STEPS + odd(10)) == 170


@pytest.mark.parametrize("seconds", [61, 300])
def test_patience_begins_anew_after_a_first_step_that_has_taken_a_minute(seconds):
    """That no step had ended was said in it."""
    assert live([(A, seconds)] + [(A, 1)] * (IDENTIFY_STEPS - 1)) is None
    assert live([(A, seconds), *odd(1)]) == seconds + 60


def test_time_is_counted_once_whether_a_step_or_a_wait_has_it():
    identifier = Identifier()
    feed(identifier, [A, B], ms=21_000)
    assert identifier.complaint() is None
    feed(identifier, [C], ms=21_000)
    seen = identifier.complaint()
    assert seen is not None and seen.steps == 3


def test_a_first_step_that_takes_long_is_no_reason_to_complain():
    identifier = Identifier()
    feed(identifier, [A], ms=300_000)
    feed(identifier, [A] * (IDENTIFY_STEPS - 2))
    assert identifier.complaint() is None


@pytest.mark.parametrize("communicates", [False, True])
def test_a_job_in_which_no_step_ends_hears_so(communicates):
    identifier = Identifier()
    for _ in range(59):
        identifier.wait(1.0, communicates=communicates)
    assert identifier.complaint() is None
    identifier.wait(1.0)
    seen = identifier.complaint()
    assert seen is not None and (seen.steps, seen.communicates) == (0, communicates)
    feed(identifier, odd_steps(PATIENCE_STEPS))
    assert identifier.complaint() is not None


def test_what_was_paused_or_silent_is_told_apart():
    identifier = Identifier()
    feed(identifier, [0] * 120)
    feed(identifier, [A] * 80, payload_bytes=0)
    seen = identifier.complaint()
    assert seen is not None
    assert (seen.steps, seen.paused, seen.silent, seen.recent) == (200, 120, 80, 0)


def test_a_training_step_that_hardly_ever_comes_again_is_a_reason_to_complain():
    identifier = Identifier()
    feed(identifier, [A] * IDENTIFY_STEPS)
    feed(identifier, range(100, 100 + PATIENCE_STEPS))
    seen = identifier.complaint()
    assert seen is not None and 0 < seen.trained < 10


def test_a_job_that_trains_never_complains():
    identifier = Identifier()
    feed(identifier, ([A] * 50 + [EVALUATION] * 5) * 50, ms=500)
    for _ in range(1000):
        identifier.wait(1.0)
    assert identifier.complaint() is None


def test_groups_have_a_longest_length():
    identifier = Identifier()
    assert feed(identifier, list(range(1, LONGEST_GROUP + 2)) * 50) == []
