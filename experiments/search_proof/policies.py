"""The policies: each gets the default and its reading (0), makes its readings, recommends one.

Where a policy has a posterior, it recommends the setting that was read with the best posterior
mean; else the best reading.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from problems import DEFAULT, REAL, WHOLE, Problem

from autotune.bayes import BayesianOptimizer, SearchSpace
from autotune.space import Parameter

NAMES = ("two", "four", "eight", "sixteen", "real")
Setting = tuple[float, ...]
Policy = Callable[[Problem, int, int], list[Setting]]
"""(problem, readings, seed) -> what it would recommend after each reading, the default's first."""


# ---- ours ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A setting of the made-up table."""

    two: int = int(DEFAULT[0])
    four: int = int(DEFAULT[1])
    eight: int = int(DEFAULT[2])
    sixteen: int = int(DEFAULT[3])
    real: float = DEFAULT[4]

    def as_dict(self) -> dict[str, float]:
        return dataclasses.asdict(self)

    def with_values(self, values) -> Point:
        return dataclasses.replace(self, **values)

    @property
    def x(self) -> Setting:
        return (self.two, self.four, self.eight, self.sixteen, self.real)


def _row(name: str, kind: type, low: float, high: float, default: float) -> Parameter:
    return Parameter(
        name=name,
        word=name,
        unit="",
        type=kind,
        default=default,
        valid_low=low,
        valid_high=high,
        search_low=low,
        search_high=high,
        scale="linear",
        env="",
        flag="",
        column="",
    )


TABLE = tuple(
    _row(name, int if name != "real" else float, *bounds, default)
    for name, bounds, default in zip(NAMES, (*WHOLE, REAL), DEFAULT, strict=True)
)


def ours(problem: Problem, readings: int, seed: int) -> list[Setting]:
    """The tuner's optimizer, on a made-up table, without a trend and without known noise."""
    space = SearchSpace(Point(), parameters=TABLE)
    optimizer = BayesianOptimizer(space, rng=np.random.default_rng(seed), max_trials=readings)
    optimizer.tell(Point(), 0.0, 0.0)
    kept = [DEFAULT]
    for _ in range(readings - 1):
        optimizer.learn()
        proposal = optimizer.ask()
        assert proposal is not None
        optimizer.tell(proposal.params, -problem.read(proposal.params.x))
        kept.append(optimizer.incumbent().params.x)
    return kept


# ---- the peers ----------------------------------------------------------------------------------


def _luckiest(settings: Sequence[Setting], values: Sequence[float]) -> list[Setting]:
    """Return the setting with the best of the first 1, 2, ... readings."""
    return [settings[int(np.argmin(values[: k + 1]))] for k in range(len(settings))]


def _optuna(sampler, problem: Problem, readings: int) -> list[Setting]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=sampler)
    spaces = {
        name: optuna.distributions.IntDistribution(*bounds)
        for name, bounds in zip(NAMES, WHOLE, strict=False)
    }
    spaces["real"] = optuna.distributions.FloatDistribution(*REAL)
    given = dict(zip(NAMES, DEFAULT, strict=True))
    study.add_trial(optuna.create_trial(params=given, distributions=spaces, value=0.0))
    settings, values = [DEFAULT], [0.0]
    for _ in range(readings - 1):
        trial = study.ask(spaces)
        settings.append(tuple(trial.params[name] for name in NAMES))
        values.append(problem.read(settings[-1]))
        study.tell(trial, values[-1])
    return _luckiest(settings, values)


def optuna_gp(problem: Problem, readings: int, seed: int) -> list[Setting]:
    """Optuna's GPSampler, told that readings are noisy."""
    import optuna

    sampler = optuna.samplers.GPSampler(seed=seed, deterministic_objective=False)
    return _optuna(sampler, problem, readings)


def optuna_tpe(problem: Problem, readings: int, seed: int) -> list[Setting]:
    """Optuna's TPESampler as it comes."""
    import optuna

    return _optuna(optuna.samplers.TPESampler(seed=seed), problem, readings)


def gp_minimize(problem: Problem, readings: int, seed: int) -> list[Setting]:
    """``skopt.gp_minimize`` as it comes (its noise is learned)."""
    import skopt

    dimensions = [skopt.space.Integer(*bounds) for bounds in WHOLE] + [skopt.space.Real(*REAL)]
    start = [*map(int, DEFAULT[:4]), DEFAULT[4]]
    result = skopt.gp_minimize(
        problem.read,
        dimensions,
        n_calls=readings - 1,
        x0=[start],
        y0=[0.0],
        random_state=seed,
    )
    settings, values = [tuple(x) for x in result.x_iters], list(result.func_vals)
    kept = _luckiest(settings, values)
    first = len(settings) - len(result.models)  # a model after each reading from here on
    for k, model in enumerate(result.models):
        known = result.x_iters[: first + k + 1]
        mean = model.predict(result.space.transform(known))
        kept[first + k] = settings[int(np.argmin(mean))]
    return kept


def smac(problem: Problem, readings: int, seed: int) -> list[Setting]:
    """SMAC3's facade for mixed spaces (a random forest) as it comes."""
    from ConfigSpace import ConfigurationSpace, Float, Integer
    from smac import HyperparameterOptimizationFacade as Facade
    from smac import Scenario
    from smac.runhistory.dataclasses import TrialInfo, TrialValue

    space = ConfigurationSpace(seed=seed)
    space.add(
        *[
            Integer(name, bounds, default=int(value))
            for name, bounds, value in zip(NAMES, WHOLE, DEFAULT, strict=False)
        ],
        Float("real", REAL, default=DEFAULT[4]),
    )
    with tempfile.TemporaryDirectory() as folder:
        scenario = Scenario(
            space, deterministic=True, n_trials=readings, seed=seed, output_directory=folder
        )
        model = Facade(
            scenario,
            lambda config, seed=0: 0.0,
            initial_design=Facade.get_initial_design(scenario, n_configs=readings // 2 - 1),
            logging_level=False,
            overwrite=True,
        )
        default = space.get_default_configuration()
        model.tell(TrialInfo(default, seed=0), TrialValue(cost=0.0))
        settings, values = [DEFAULT], [0.0]
        for _ in range(readings - 1):
            info = model.ask()
            settings.append(tuple(info.config[name] for name in NAMES))
            values.append(problem.read(settings[-1]))
            model.tell(info, TrialValue(cost=values[-1]))
    return _luckiest(settings, values)


def random_search(problem: Problem, readings: int, seed: int) -> list[Setting]:
    """Random settings; the best reading."""
    rng = np.random.default_rng(seed)
    settings, values = [DEFAULT], [0.0]
    for _ in range(readings - 1):
        whole = [int(rng.integers(low, high + 1)) for low, high in WHOLE]
        settings.append((*whole, float(rng.uniform(*REAL))))
        values.append(problem.read(settings[-1]))
    return _luckiest(settings, values)


POLICIES: dict[str, Policy] = {
    "ours": ours,
    "optuna-gp": optuna_gp,
    "optuna-tpe": optuna_tpe,
    "smac": smac,
    "gp_minimize": gp_minimize,
    "random": random_search,
}


@contextlib.contextmanager
def quietly():
    """Keep libraries from talking."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
