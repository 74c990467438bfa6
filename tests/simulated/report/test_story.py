from __future__ import annotations

import math

import pytest

from autotune.report import tables
from autotune.report.evidence import Evidence, spread_out
from autotune.report.explain import explain
from autotune.report.story import Story, tell
from autotune.report.verdict import Kind, break_even_steps, expected_maximum, percent
from autotune.storage.reader import read_log
from autotune.storage.readings import KINDS as SAMPLE_KINDS
from autotune.storage.readings import NO_PAIR, Readings, read_readings
from autotune.trial import Certificate, CommParams, Gain, SampleKind, Trial, TrialState

KINDS = {
    "gain": Kind.FASTER,
    "no gain": Kind.NOT_PROVEN,
    "nothing": Kind.NOTHING_COMPARED,
    "unfinished": Kind.UNFINISHED,
    "no database": Kind.NO_DATABASE,
    "empty": Kind.EMPTY,
    "one rank": Kind.ONE_RANK,
    "horovod": Kind.FOREIGN,
}


def readings_of(*windows: tuple[int, float, float], pair: bool = False) -> Readings:
    """Return windows of one step: (trial, step time in us, end in seconds)."""
    made = Readings()
    for number, (trial, step_us, end_s) in enumerate(windows):
        made.trial_id.append(trial)
        made.kind.append(SAMPLE_KINDS.index(SampleKind.CERTIFY if pair else SampleKind.REREAD))
        made.pair.append(number // 2 if pair else NO_PAIR)
        made.steps.append(1)
        made.duration_us.append(step_us)
        made.payload_bytes.append(1000)
        made.exposed_us.append(step_us / 4)
        made.score.append(1000 / step_us)
        made.finished_s.append(end_s)
    return made


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_log_gets_its_own_verdict(stories: dict[str, Story], name: str) -> None:
    verdict = stories[name].verdict
    if name == "unfinished":
        assert verdict.kind in (Kind.UNFINISHED, Kind.BEYOND_DOUBT)
        assert "not certified yet" in verdict.text
    else:
        assert verdict.kind is KINDS[name]
    assert verdict.text.endswith(".") and verdict.answer


def test_only_a_certificate_is_called_a_comparison(stories: dict[str, Story]) -> None:
    compared = {name for name, story in stories.items() if story.verdict.compared}
    assert compared == {"gain", "no gain"}


def test_the_gain_is_the_certificates(stories: dict[str, Story]) -> None:
    story = stories["gain"]
    certificate = story.view.certificate
    assert certificate is not None and story.verdict.gain is not None
    assert story.verdict.gain.estimate == certificate.gain
    assert percent(certificate.gain) in story.verdict.text
    assert percent(certificate.gain_high) in story.verdict.text


@pytest.mark.parametrize("name", ["gain", "no gain"])
def test_every_pair_of_the_certificate_is_there(stories: dict[str, Story], name: str) -> None:
    story = stories[name]
    certificate = story.view.certificate
    assert certificate is not None
    assert [pair.number for pair in story.pairs] == list(range(1, certificate.pairs + 1))
    middle = sorted(pair.gain for pair in story.pairs)[certificate.pairs // 2]
    assert certificate.gain_low < middle < certificate.gain_high


def test_a_comparison_that_began_anew_shows_its_own_pairs_only() -> None:
    first = [(0, 100.0, 1.0), (3, 50.0, 2.0), (3, 50.0, 3.0), (0, 100.0, 4.0)]
    readings = readings_of(*first, *[(0, 100.0, 5.0), (3, 80.0, 6.0)] * 3, pair=True)
    readings.pair[4:] = type(readings.pair)("q", [0, 0, 1, 1, 2, 2])
    certificate = Certificate(
        trial_id=3,
        pairs=3,
        gain=0.25,
        gain_low=0.1,
        gain_high=0.4,
        alpha=0.01,
        certified=True,
        reason="",
    )
    pairs = Evidence(readings).pairs(3, certificate)
    assert [pair.gain for pair in pairs] == pytest.approx([0.25] * 3)


def test_what_to_run_is_the_answer_of_best(stories: dict[str, Story]) -> None:
    for story in stories.values():
        best = story.view.best
        assert (story.replay is None) == (best is None)
        if best is not None and story.replay is not None:
            assert story.replay.params == best.params
            assert story.replay.is_default == (best.params == CommParams())


def test_the_ablation_leads_from_the_default_to_the_setting(stories: dict[str, Story]) -> None:
    story = stories["gain"]
    explanation = story.explanation
    assert explanation is not None and explanation.changes
    params = story.view.trials[0].params
    total = 1.0
    for change in explanation.changes:
        for part in change.parts:
            assert params.as_dict()[part.parameter.name] == part.before
            params = params.with_values({part.parameter.name: part.after})
        total *= 1 + change.gain.estimate
        assert total == pytest.approx(1 + change.total.estimate, abs=0.02)
        assert change.gain.low < change.gain.estimate < change.gain.high
    assert params == explanation.setting


def test_what_was_never_tried_apart_is_one_change() -> None:
    """Else the whole gain goes to the one of the two that comes first."""
    both = {"hierarchical_allreduce": True, "hierarchical_allgather": True}
    default = CommParams()
    trials = [Trial(trial_id=0, params=default, score=100.0)]
    for number, (cycle, high) in enumerate([(1.0, 2.1), (10.0, 2.2), (0.1, 1.9)], 1):
        gain = Gain(estimate=high - 1.05, low=high - 1.1, high=high - 1.0)
        params = default.with_values({**both, "cycle_time_ms": cycle})
        trials.append(Trial(trial_id=number, params=params, score=100 * high, gain=gain))
    best = trials[2].params

    def changes(trials: list[Trial]) -> list[set[str]]:
        found = explain(trials, best, around=best, fingerprint={}, readings={})
        assert found is not None
        rows = tables.changes(found)
        assert rows is not None
        assert ("without the other" in rows.caption) == any(len(c.parts) > 1 for c in found.changes)
        return [{part.parameter.name for part in change.parts} for change in found.changes]

    assert sorted(map(len, changes(trials))) == [1, 2] and set(both) in changes(trials)
    alone = default.with_values({"hierarchical_allgather": True})
    gain = Gain(estimate=1.0, low=0.9, high=1.1)
    apart = [*trials, Trial(trial_id=4, params=alone, score=200.0, gain=gain)]
    assert sorted(map(len, changes(apart))) == [1, 1, 1]


def test_ablation_and_rest_come_to_the_gain_that_was_read(stories: dict[str, Story]) -> None:
    explanation, verdict = stories["gain"].explanation, stories["gain"].verdict
    assert explanation is not None and explanation.rest is not None and verdict.gain is not None
    total = (1 + explanation.changes[-1].total.estimate) * (1 + explanation.rest)
    assert total == pytest.approx(1 + verdict.gain.estimate)


def test_what_matters_in_the_surface_matters_in_the_report(stories: dict[str, Story]) -> None:
    explanation = stories["gain"].explanation
    assert explanation is not None
    slices = {one.parameter.name: one for one in explanation.slices}
    assert slices["cycle_time_ms"].matters and slices["fusion_threshold_bytes"].matters
    far = slices["cycle_time_ms"].farthest
    assert far is not None and far.difference.estimate < -0.05


def test_the_surrogate_is_surest_where_it_was_told(stories: dict[str, Story]) -> None:
    explanation = stories["gain"].explanation
    assert explanation is not None
    for one in explanation.slices:
        widths = {place.value: place.difference.high - place.difference.low for place in one.places}
        assert min(widths, key=lambda value: widths[value]) == one.at


def test_parameters_that_were_not_varied_say_why(stories: dict[str, Story]) -> None:
    explanation = stories["gain"].explanation
    assert explanation is not None
    reasons = {one.parameter.name: one.why for one in explanation.not_varied}
    assert reasons == {
        "hierarchical_allreduce": "all ranks are on one host",
        "hierarchical_allgather": "all ranks are on one host",
    }


def test_a_log_without_gains_is_not_explained(stories: dict[str, Story]) -> None:
    for name in ("no database", "empty", "horovod", "nothing", "one rank"):
        assert stories[name].explanation is None


def test_the_exposed_share_is_that_of_the_job(stories: dict[str, Story]) -> None:
    story = stories["gain"]
    assert story.default is not None and story.tuned is not None
    assert story.default.share == pytest.approx(0.63, abs=0.05)  # 84 of 134 ms
    assert story.tuned.share < story.default.share
    assert story.tuned.step_us < story.default.step_us
    assert story.verdict.gain is not None and story.verdict.gain.estimate < story.headroom


def test_the_history_has_every_trial_in_order(stories: dict[str, Story]) -> None:
    for story in stories.values():
        if story.view.best is None:
            continue
        assert [a.trial.trial_id for a in story.attempts] == [t.trial_id for t in story.view.trials]
        times = [attempt.at_s for attempt in story.attempts if attempt.at_s is not None]
        assert times == sorted(times)


def test_a_machine_that_becomes_slower_is_seen_in_the_drift() -> None:
    windows = [(0, 1000.0 + 10 * k, float(k)) for k in range(11)]
    curve = Evidence(readings_of(*windows)).default_curve()
    assert curve is not None
    assert curve.drift == pytest.approx(0.1) and curve.spread == pytest.approx(0.1)


def test_a_long_drift_is_grouped_and_keeps_its_ends() -> None:
    windows = [(0, 1000.0 + k % 7, float(k)) for k in range(3000)]
    curve = Evidence(readings_of(*windows)).default_curve()
    assert curve is not None and len(curve.step_us) <= 400 and curve.windows > 1
    assert curve.low_us.min() == 1000.0 and curve.high_us.max() == 1006.0


def test_time_is_lost_against_the_default_near_it_in_time() -> None:
    fast, slow = (0, 100.0, 1.0), (0, 400.0, 3.0)
    price = Evidence(readings_of(fast, (1, 250.0, 2.0), slow)).price()
    assert price is not None
    assert price.lost_us == pytest.approx(250.0 - math.sqrt(100.0 * 400.0))
    assert (price.steps, price.other_steps, price.changes) == (3, 1, 2)


def test_settings_that_are_faster_lose_nothing() -> None:
    price = Evidence(readings_of((0, 100.0, 1.0), (1, 50.0, 2.0), (0, 100.0, 3.0))).price()
    assert price is not None and price.lost_us == pytest.approx(-50.0)
    assert price.share == pytest.approx(-50.0 / 300.0)


def test_the_break_even_is_the_loss_over_what_a_step_saves() -> None:
    assert break_even_steps(1000.0, 110.0, 0.1) == pytest.approx(100.0)
    assert break_even_steps(-5.0, 110.0, 0.1) == 0.0
    assert break_even_steps(5.0, 110.0, 0.0) == math.inf


def test_a_break_even_is_only_promised_where_something_is_kept(stories: dict[str, Story]) -> None:
    for name in ("gain", "no gain", "nothing"):
        cost = stories[name].cost
        assert cost is not None and cost.budget == 0.05
        assert (cost.break_even is not None) == (name == "gain")


def test_luck_grows_with_the_number_of_readings() -> None:
    assert expected_maximum(1) == 0.0
    assert expected_maximum(21) == pytest.approx(1.89, abs=0.02)  # tables of order statistics


def test_equal_times_are_spread_over_their_second() -> None:
    import numpy as np

    spread = spread_out(np.array([5.0, 5.0, 5.0, 5.0, 7.0]))
    assert spread.tolist() == [4.25, 4.5, 4.75, 5.0, 7.0]
    assert spread_out(np.array([])).tolist() == []


def test_readings_can_be_followed(logs: dict[str, str]) -> None:
    view = read_log(logs["gain"])
    assert view.database is not None and view.run is not None
    whole = read_readings(view.database, view.run.run_id)
    known = Readings(last_id=whole.last_id)
    assert len(read_readings(view.database, view.run.run_id, known)) == 0
    assert len(whole) > 50
    assert len(whole.trials_finished_s) == len(view.trials)


def test_a_csv_and_its_database_tell_the_same(logs: dict[str, str]) -> None:
    from_csv = tell(read_log(logs["gain"]))
    from_database = tell(read_log(logs["gain"].replace(".csv", ".db")))
    assert from_csv.verdict == from_database.verdict
    assert from_csv.pairs == from_database.pairs
    assert from_csv.cost == from_database.cost


def test_rejected_trials_are_in_the_history_and_not_explained(logs: dict[str, str]) -> None:
    view = read_log(logs["gain"])
    trials = [*view.trials[:3], view.trials[3].rejected, *view.trials[4:]]
    story = tell(type(view)(**{**vars(view), "trials": tuple(trials)}))
    states = [attempt.trial.state for attempt in story.attempts]
    assert states[3] is TrialState.REJECTED
    assert story.explanation is not None and story.explanation.gains == len(trials) - 2


def test_a_comparison_that_was_cut_within_its_first_pair_loses_none(
    stories: dict[str, Story],
) -> None:
    """As a job leaves it that was killed, resumed, and then compared another setting."""
    cut = [(1, 90.0, 1.0)]
    readings = readings_of(*cut, *[(3, 80.0, 2.0), (0, 100.0, 3.0)] * 3, pair=True)
    readings.pair[:] = type(readings.pair)("q", [0, 0, 0, 1, 1, 2, 2])
    pairs = Evidence(readings).pairs(3, stories["gain"].view.certificate)
    assert [pair.number for pair in pairs] == [1, 2, 3]
    assert [pair.gain for pair in pairs] == pytest.approx([0.25] * 3)
    assert Evidence(readings).compared_at_last() == 3


def test_gains_as_read_are_those_of_the_trials_own_windows() -> None:
    one = [(0, 100.0, 1.0), (1, 80.0, 2.0), (0, 120.0, 3.0), (2, 110.0, 4.0)]
    two = [(0, 100.0, 5.0), (1, 90.0, 6.0), (0, 100.0, 7.0), (3, 1.0, 8.0)]
    gains = Evidence(readings_of(*one, *two)).read_gains()
    assert set(gains) == {1, 2}  # nothing stands after the third one
    first, second = math.log(math.sqrt(100 * 120) / 80), math.log(100 / 90)
    assert min(first, second) < gains[1][0] < max(first, second)
    assert gains[2][0] == pytest.approx(math.log(math.sqrt(120 * 100) / 110))
    assert 0 < gains[1][1] < gains[2][1]


def test_the_surrogate_is_told_readings_not_what_the_tuner_made_of_them(
    stories: dict[str, Story],
) -> None:
    explanation = stories["gain"].explanation
    assert explanation is not None
    trials = stories["gain"].view.trials
    told = [explanation.told[trial.params].estimate for trial in trials if trial.gain is not None]
    seen = [trial.gain.estimate for trial in trials if trial.gain is not None]
    assert told != seen and told == pytest.approx(seen, abs=0.15)


def test_a_step_of_the_default_is_that_of_the_windows_beside_the_other_setting() -> None:
    first = [(0, 500.0, 1.0), (1, 450.0, 2.0), (1, 460.0, 3.0), (0, 510.0, 4.0)]
    second = [(0, 100.0, 5.0), (2, 80.0, 6.0), (2, 82.0, 7.0), (0, 102.0, 8.0)]
    evidence = Evidence(readings_of(*first, *second, pair=True))
    default, other = evidence.waiting(0, beside=2), evidence.waiting(2, beside=2)
    assert default is not None and other is not None
    assert (default.windows, other.windows) == (2, 2)
    assert default.step_us == pytest.approx(101.0) and other.step_us == pytest.approx(81.0)
    alone = Evidence(readings_of(*first, *second)).waiting(0, beside=2)
    assert alone is not None and alone.step_us == pytest.approx(101.0)
