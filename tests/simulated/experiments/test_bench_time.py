"""The bench knows time: machines that change their speed, and what is claimed meanwhile."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import wanted
from after_done import AFTER, quiet, slow_link
from after_done import table as after_table
from claims import STANDING, TRIAL, Claim
from job import Job
from kinds import CHOSEN, KINDS, STATIONARY, Earlier, Kind
from memory import remembered, surface_of
from metrics import lost_share, measure
from policies.ending import Ending
from run import Task, run_one, tasks
from speed import SECOND, Clock, decay, shift, start_up, two_speeds, wave
from surfaces import SIMULATED, Surface, Truth, all_surfaces

from autotune.trial import CommParams, Gain

SLOW = CommParams(cycle_time_ms=50.0)
DEFAULT_US = 10_000.0


def surface() -> Surface:
    """10 ms by default, 20 with a long cycle."""
    return Surface(
        name="tiny",
        source=SIMULATED,
        operations=(("allreduce", 1000),),
        size=2,
        hosts=1,
        truth_of=lambda params: Truth(
            step_us=DEFAULT_US * (2 if params == SLOW else 1), exposed_us=5000.0
        ),
        grid=lambda: [CommParams(), SLOW],
    )


def job(kind: Kind, seed: int = 0, cv: float = 0.0) -> Job:
    return Job(surface=surface(), rng=np.random.default_rng(seed), kind=kind, cv=cv)


def test_a_step_that_spans_a_change_takes_part_in_both_speeds() -> None:
    clock = Clock(iter([(100.0, 1.0), *[(1000.0, 2.0)] * 300]))
    assert clock.ends(80.0, np.array([60.0, 10.0])) == pytest.approx([180.0, 200.0])


def test_steps_end_at_the_same_times_however_many_are_made_at_once() -> None:
    rng = np.random.default_rng(3)
    works = rng.uniform(1e3, 3e6, 400)
    one, many = (Clock(two_speeds(np.random.default_rng(7), 1e4)) for _ in range(2))
    together = many.ends(0.0, works)
    now, apart = 0.0, []
    for work in works:
        now = float(one.ends(now, np.array([work]))[0])
        apart.append(now)
    assert apart == pytest.approx(together)


def test_long_steps_average_the_two_speeds() -> None:
    clock = Clock(two_speeds(np.random.default_rng(1), 1e4))
    ends = clock.ends(0.0, np.full(400, 20 * SECOND))
    times = np.diff(ends, prepend=0.0) / (20 * SECOND)
    harmonic = 2 / (1 + 1 / 1.8)  # equal time at both speeds, so speeds average, not slownesses
    assert times.mean() == pytest.approx(harmonic, rel=0.02)
    assert times.std() < 0.1


def test_load_slows_down_what_lies_in_it_and_nothing_else() -> None:
    clock = Clock(itertools.repeat((1e9, 1.0)))
    clock.load(100.0, 200.0, 2.0)
    assert clock.ends(0.0, np.array([100.0, 25.0, 25.0, 50.0])) == pytest.approx(
        [100, 150, 200, 250]
    )
    clock.load(300.0, 400.0, 4.0)
    assert clock.ends(250.0, np.array([75.0])) == pytest.approx([400.0])


def slowness(process: object, at_s: list[float], seed: int = 0) -> list[float]:
    clock = Clock(process(np.random.default_rng(seed), DEFAULT_US))  # type: ignore[operator]
    return [(float(clock.ends(t * SECOND, np.array([1.0]))[0]) - t * SECOND) for t in at_s]


def test_kinds_are_what_they_are_called() -> None:
    assert slowness(start_up, [0, 3.9, 4.1, 1000]) == pytest.approx([2, 2, 1, 1], rel=1e-3)
    early, later, late = slowness(decay, [0.01, 3, 500])
    assert 1.9 < early <= 2 and 1 < later < early and late == pytest.approx(1, rel=1e-3)
    shifted = {round(slowness(shift, [0.1, 60], seed)[1], 3) for seed in range(20)}
    assert shifted == {round(1 / 0.6, 3), round(1 / 1.5, 3)}
    waves = slowness(wave, [0.1 * k for k in range(2000)])
    assert min(waves) == pytest.approx(0.8, abs=0.01) and max(waves) == pytest.approx(1.2, abs=0.01)
    assert set(np.round(slowness(two_speeds, [0.37 * k for k in range(200)]), 1)) == {1.0, 1.8}


def test_the_speed_of_a_run_follows_from_its_seed() -> None:
    same, again, other = (job(KINDS["two-speeds"], seed, cv=0.05).run(500) for seed in (1, 1, 2))
    assert (same == again).all()
    assert not (same == other).all()


def test_all_settings_are_slowed_down_alike() -> None:
    at_default, at_slow = job(KINDS["start-up"]), job(KINDS["start-up"])
    at_slow.put(SLOW)
    assert at_default.run(1)[0] * 2 == pytest.approx(at_slow.run(1)[0])
    assert at_default.exposed_us[0] == pytest.approx(10_000.0)


def test_planning_makes_steps_slower_while_it_lasts() -> None:
    busy = job(KINDS["planning"])
    busy.plan_for(0.05)
    times = busy.run(10) / DEFAULT_US
    assert times[:2] == pytest.approx([1.9, 1.9]) and times[4:] == pytest.approx(np.ones(6))
    idle = job(KINDS[STATIONARY])
    idle.plan_for(0.05)
    assert idle.run(3) == pytest.approx(np.full(3, DEFAULT_US))


def test_an_evaluation_is_within_one_step_of_a_hundred() -> None:
    times = job(KINDS["evaluation"]).run(1000) / DEFAULT_US
    struck = np.flatnonzero(times > 2)
    assert len(struck) == 10 and (np.diff(struck) == 100).all()
    assert (times[struck] >= 21).all() and (times[struck] <= 51).all()


def test_lost_time_counts_against_the_default_at_the_same_moment() -> None:
    slow = job(KINDS["start-up"])
    slow.run(100)  # 20 ms a step
    slow.put(SLOW)
    slow.run(100)  # 40 ms: until 6 s, of which the first 4 at half the speed
    lost = lost_share(slow, 200)
    assert lost[99] == 0
    default = 100 * 20.0 + slow.slowness[100:].sum() * 10
    assert lost[199] == pytest.approx(slow.slowness[100:].sum() * 10 / default)
    row, _ = measure(
        slow, Ending(params=SLOW, trials=2), policy="x", kind="start-up", seed=0, steps=200
    )
    assert row.gain == pytest.approx(-0.5)  # the speed cancels


def claim(claimed: float, true: float, half: float = math.nan, trial: int = 12) -> Claim:
    return Claim(
        line=TRIAL,
        trial=trial,
        state="abandoned",
        claimed=claimed,
        low=claimed - half,
        high=claimed + half,
        true=true,
    )


def test_claims_are_compared_with_the_truth() -> None:
    row, _ = measure(
        job(KINDS[STATIONARY]),
        Ending(params=CommParams(), trials=2, gain=0.02, certified=True),
        policy="ours",
        kind=STATIONARY,
        seed=0,
        steps=0,
    )
    claims = [claim(0.3, 0.1, 0.05), claim(0.1, 0.12, 0.03), claim(0.0, -0.1), claim(0, 0, 0.5, 2)]
    lines = [one.as_dict() for one in claims]
    seen = wanted.figures([row.as_dict()], lines)
    assert seen["trial_p90"] == pytest.approx(np.quantile([0.2, -0.02, 0.1, 0.0], 0.9))
    assert seen["coverage"] == pytest.approx(2 / 3)
    assert seen["width"] == pytest.approx(0.08)
    assert seen["silent"] == pytest.approx(1 / 4)
    assert (seen["abandoned"], seen["abandoned_faster"]) == (4, 2)
    assert seen["certified_p90"] == pytest.approx(0.02)
    assert math.isnan(seen["standing_p90"])


def test_a_gain_without_a_word_is_what_the_scores_say() -> None:
    said = Gain(estimate=0.2, low=0.1, high=0.3)
    about = {"line": STANDING, "trial": 3, "state": "complete", "true": 0.15}
    assert Claim.of(said, otherwise=0.9, **about).claimed == 0.2  # type: ignore[arg-type]
    silent = Claim.of(None, otherwise=0.9, **about)  # type: ignore[arg-type]
    assert silent.claimed == 0.9 and math.isnan(silent.low)


def test_bounds_that_are_not_kept_stand_out() -> None:
    row, _ = measure(
        job(KINDS["two-speeds"]),
        Ending(params=SLOW, trials=20),
        policy="ours",
        kind="two-speeds",
        seed=0,
        steps=700,
    )
    text = wanted.table(wanted.by_kind([row.as_dict()], [], "ours"))
    assert "| ends worse than the default by > 0.5 % | 0 | **1** |" in text
    assert "| regret, 90 % | <= 5% | **100.0% (<= 8%)** |" in text
    assert "| search trials, median | <= 15 | **20** |" in text


def test_every_kind_is_crossed_with_surfaces_that_exist() -> None:
    names = list(all_surfaces())
    assert set(CHOSEN) <= set(names)
    chosen = tasks(36, ["ours"], list(KINDS), names, first=100)
    for kind in KINDS:
        mine = [task for task in chosen if task.kind == kind]
        assert len(mine) == 36 and min(task.seed for task in mine) == 100
        assert len({(task.surface, task.seed) for task in mine}) == 36


def test_what_a_run_claims_on_the_way_is_kept() -> None:
    result = run_one(
        Task(policy="ours", kind="start-up", surface="two-hosts-200-single", seed=1),
        all_surfaces()["two-hosts-200-single"],
        0.05,
    )
    lines = result.lines()
    trials = [line for line in lines if line["line"] == TRIAL]
    assert len(trials) == result.row.trials - 1
    assert {line["kind"] for line in lines} == {"start-up"}
    assert result.row.finished and not result.row.worse


def test_a_job_that_remembers_gets_the_log_of_a_finished_one() -> None:
    here, earlier = all_surfaces()["two-hosts-200-small"], Earlier(surface="two-hosts-50-small")
    memory = remembered(here, earlier, seed=4, cv=0.05)
    assert memory.trials == remembered(here, earlier, seed=1, cv=0.05).trials
    assert memory.similarity == 1.0
    assert memory.trials[0].params == CommParams()
    assert memory.best in [trial.params for trial in memory.trials]
    truth = surface_of(earlier).truth
    assert memory.best is not None
    assert truth(memory.best).step_us < truth(CommParams()).step_us
    alien = remembered(all_surfaces()["gpt2 10G 4x4"], earlier, seed=1, cv=0.05)
    assert 0 < alien.similarity < 1


def test_earlier_jobs_have_other_hosts_or_cables() -> None:
    usual = all_surfaces()["narrow-resnet50 1G 2x2"]
    wide, slow = (
        surface_of(Earlier(surface=usual.name, **other))  # type: ignore[arg-type]
        for other in ({"hosts": 4}, {"bandwidth": 0.2})
    )
    assert (wide.name, wide.size) == ("narrow-resnet50 1G 4x2", 8)
    assert slow.name == "narrow-resnet50 0.2G 2x2"
    assert slow.operations == usual.operations
    assert slow.default_us > 2 * usual.default_us
    for kind in KINDS.values():
        for earlier in (one for several in kind.memory.values() for one in several):
            assert surface_of(earlier).hosts > 1


def test_what_a_misleading_memory_recommends_is_far_from_the_best() -> None:
    for target in ("two-hosts-200-single", "two-hosts-50-small"):
        here = all_surfaces()[target]
        there = surface_of(KINDS["misleading"].memory[target][0])
        best = min(there.cells, key=lambda params: there.truth(params).step_us)
        assert here.truth(best).step_us > 1.2 * here.oracle.step_us


def test_after_the_end_a_slow_link_is_noticed_and_a_steady_job_left_alone() -> None:
    run = slow_link("two-hosts-200-small", seed=0)
    assert run.alarms == 0
    assert 0 < run.noticed < AFTER
    assert run.settled >= run.noticed or run.settled == 0
    assert run.gain > 0
    calm = quiet("stationary", "two-hosts-200-single", 0, 2000)
    assert calm.alarms == 0
    assert "| all | 1 | 2000 | 0.0 |" in after_table([run], [calm])
