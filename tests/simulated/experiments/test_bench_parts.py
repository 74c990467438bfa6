"""The bench's parts: models, judge, noise, measured cells, what is counted of a run."""

from __future__ import annotations

import json

import numpy as np
import oracles
import pytest
from job import Job, Noise
from judge import Cluster, Step, step_times
from kinds import KINDS, STATIONARY
from metrics import lost_share, measure
from models import MODELS
from policies.ending import Ending
from policies.horovod import blocks, sample_score
from surfaces import SIMULATED, Surface, Truth, measured, oracle_grid, shrunk, simulated

from autotune.trial import CommParams
from simulated.experiments.conftest import EXPERIMENTS

SLOW = CommParams(cycle_time_ms=50.0)
FAST = CommParams(cycle_time_ms=0.1)
TIMES = {SLOW: 200.0, FAST: 80.0, CommParams(): 100.0}


def tiny() -> Surface:
    """100 us by default, 200 with a long cycle, 80 with a short one."""
    return Surface(
        name="tiny",
        source=SIMULATED,
        operations=(("allreduce", 1000),),
        size=2,
        hosts=1,
        truth_of=lambda params: Truth(step_us=TIMES[params], exposed_us=50.0),
        grid=lambda: list(TIMES),
    )


@pytest.mark.parametrize(
    ("name", "tensors", "elements"),
    [
        ("resnet50", 161, 25_557_032),
        ("vgg16", 32, 138_357_544),
        ("bert-base", 199, 109_482_240),
        ("gpt2", 148, 124_439_808),
    ],
)
def test_models_have_the_published_numbers_of_parameters(
    name: str, tensors: int, elements: int
) -> None:
    sizes = MODELS[name]()
    assert (len(sizes), sum(sizes)) == (tensors, elements)


def test_noise_is_what_the_bench_says_it_is() -> None:
    factors = Noise(np.random.default_rng(1), 0.05).take(200_000)
    slow = factors > 2
    rest = factors[~slow]
    assert slow.mean() == pytest.approx(1 / 200, rel=0.1)
    assert rest.std() == pytest.approx(0.05, rel=0.03)
    assert rest.mean() == pytest.approx(1.0, abs=0.002)
    assert np.corrcoef(rest[:-1], rest[1:])[0, 1] == pytest.approx(0.3, abs=0.02)


def test_the_judge_never_beats_computation_and_adds_up() -> None:
    step = Step.of(MODELS["narrow-resnet50"](), compute_ms=20)
    cluster = Cluster(hosts=2, lanes=2, alpha=40.0, beta=8e-3)
    for params in oracle_grid(161, sum(step.sizes), hosts=2, gathers=False)[::97]:
        time, exposed = step_times(step, cluster, params)
        assert time >= step.compute + exposed - 1e-6
        assert exposed >= 0


def test_the_oracle_is_the_fastest_cell_and_the_default_is_one() -> None:
    surface = simulated()[-2]
    assert CommParams() in surface.cells
    assert surface.oracle.step_us == min(surface.truth(p).step_us for p in surface.cells)


def test_stored_oracles_are_those_of_the_present_surfaces() -> None:
    stored = json.loads(oracles.STORED.read_text())
    assert stored["digest"] == oracles.digest()
    for surface in [*measured(), simulated()[-2]]:
        found = CommParams.from_dict(stored["fastest"][surface.name])
        assert surface.truth(found).step_us == surface.oracle.step_us


def test_surfaces_cover_what_was_asked_for() -> None:
    surfaces = simulated()
    assert len(surfaces) >= 12
    assert {2, 64} <= {surface.size for surface in surfaces}
    for word in ("resnet50", "vgg16", "bert-base", "gpt2", "1G", "10G", "25G", "nvlink"):
        assert any(word in surface.name for surface in surfaces)


def test_surfaces_are_the_same_in_every_process() -> None:
    once, again = (simulated()[3].truth(CommParams()) for _ in range(2))
    assert once == again


def test_lost_time_is_counted_from_the_truth() -> None:
    job = Job(surface=tiny(), rng=np.random.default_rng(0))
    job.run(100)
    job.put(SLOW)
    job.run(100)
    job.put(FAST)
    job.run(100)
    lost = lost_share(job, 300)
    assert lost[99] == 0
    assert lost[199] == pytest.approx(0.5)
    assert lost[299] == pytest.approx((100 * 100 - 20 * 100) / (300 * 100))


def test_a_run_is_judged_by_its_final_choice() -> None:
    job = Job(surface=tiny(), rng=np.random.default_rng(0))
    job.put(SLOW)
    job.run(250)
    job.abandoned.append((10, 100.0))
    ending = Ending(params=SLOW, trials=3, gain=0.1)
    row, curves = measure(job, ending, policy="x", kind="stationary", seed=0, steps=250)
    assert row.worse and row.gain == pytest.approx(-0.5) and row.regret == pytest.approx(1.5)
    assert row.possible == pytest.approx(0.25) and row.claimed == 0.1
    assert row.lost == pytest.approx(1.0) and row.lost_allowed < row.lost
    assert curves.regret[-1] == pytest.approx(1.5)


def test_luck_is_taken_out_of_measured_cells() -> None:
    rng = np.random.default_rng(5)
    sizes, cycles = (0, 2**16, 2**20, 2**24), (0.2, 1.0, 5.0, 25.0)
    settings = [
        CommParams(fusion_threshold_bytes=s, cycle_time_ms=c) for s in sizes for c in cycles
    ]
    truth = np.array([100 * (1 + 0.1 * (p.fusion_threshold_bytes == 0)) for p in settings])
    traces = [level * np.exp(0.3 * rng.standard_normal(12)) for level in truth]
    raw = np.array([np.median(trace) for trace in traces])
    levels = shrunk(settings, traces)
    assert np.abs(levels / truth - 1).mean() < 0.75 * np.abs(raw / truth - 1).mean()


def test_clear_differences_between_measured_cells_stay() -> None:
    rng = np.random.default_rng(5)
    settings = [
        CommParams(fusion_threshold_bytes=s, cycle_time_ms=c)
        for s in (0, 2**16, 2**20)
        for c in (0.2, 1.0, 5.0)
    ]
    truth = 100 * np.array([1, 2, 1, 2, 1, 2, 1, 2, 1])
    traces = [level * np.exp(0.01 * rng.standard_normal(20)) for level in truth]
    assert shrunk(settings, traces) == pytest.approx(truth, rel=0.03)


def test_horovods_policy_explores_the_published_number_of_blocks() -> None:
    assert 21 * len(list(blocks(gpu=False))) == 84
    assert next(blocks(gpu=True)) == (False, False, False)
    assert len(list(blocks(gpu=True))) == 8  # 16 with torus_allreduce, which this engine lacks


def test_horovods_score_is_the_median_of_five() -> None:
    times = np.concatenate([np.full(10, t) for t in (1.0, 2.0, 4.0, 5.0, 10.0)] + [[99.0]])
    assert sample_score(times, 1000) == 250.0


def test_the_readme_shows_every_picture_and_says_when_the_first_proposal_comes() -> None:
    folder = EXPERIMENTS / "tuner_bench"
    text = (folder / "README.md").read_text()
    for name in ("plot-light", "plot-dark", "time-light", "time-dark"):
        assert f'"results/{name}.svg"' in text
        assert (folder / "results" / f"{name}.svg").is_file()
    stationary = KINDS[STATIONARY]
    assert f"the first proposal comes {stationary.first_plan_s:g} s after it was asked" in text
    assert f"the others {stationary.plan_s:g} s" in text
