"""Why a setting is faster, what does not matter, and how each parameter acts: by the surrogate.

The surrogate is the tuner's own Gaussian process (``autotune.bayes``), told the gains that were
read in this run and nothing else: no cost model, no earlier job, and each trial by its own readings
(what the log calls a trial's gain has the trials near it in it already). Differences between two
settings come with a 90 % interval; what no reading is near to has a wide one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.bayes import BayesianOptimizer, SearchSpace
from autotune.bayes.encoding import Dimension
from autotune.exact import value_text
from autotune.space import Parameter, Value
from autotune.trial import Gain, Setting, Trial, TrialState

NORMAL_90 = 1.6449
"""Standard deviations on each side of the mean that hold 90 % of a normal distribution."""
NO_MATTER = 0.01
"""A change in step time that is expected to be smaller than this does not matter."""
FEWEST_GAINS = 2
"""Settings with a known gain, besides the default, from which on there is something to explain."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One parameter of a change.

    Attributes:
        parameter: What is changed.
        before, after: Its values.
    """

    parameter: Parameter
    before: Value
    after: Value


@dataclass(frozen=True, kw_only=True)
class Change:
    """One step on the way from the default to a setting.

    Attributes:
        parts: One parameter, or several that were never read apart: nobody can tell which of them
            it is.
        gain: Of this change alone, at this place of the way.
        total: Of all changes so far, over the default.
        read: The gain that this setting had in the run; None: it was not tried.
    """

    parts: tuple[Part, ...]
    gain: Gain
    total: Gain
    read: Gain | None

    @property
    def before_text(self) -> str:
        """The values before, without names."""
        return " and ".join(bare_text(one.parameter, one.before) for one in self.parts)

    @property
    def after_text(self) -> str:
        """The values after."""
        return " and ".join(value_text(one.parameter, one.after) for one in self.parts)


@dataclass(frozen=True, kw_only=True)
class Place:
    """One value of a parameter, everything else as in the setting that is looked at.

    Attributes:
        value: In the parameter's unit.
        over_default: Gain over the default.
        difference: Gain over the setting itself.
    """

    value: Value
    over_default: Gain
    difference: Gain


@dataclass(frozen=True, kw_only=True)
class Slice:
    """How one parameter acts around a setting.

    Attributes:
        parameter: The parameter.
        at: Its value in the setting.
        places: By value.
        low, high: Ends of the range around ``at`` in which a change is expected to be below
            ``NO_MATTER``.
        saturation: Values at or above this one are the same for the job; None: no such value.
        values_tried: How many different values were read.
    """

    parameter: Parameter
    at: Value
    places: tuple[Place, ...]
    low: Value
    high: Value
    saturation: float | None
    values_tried: int

    @property
    def inside(self) -> tuple[Place, ...]:
        """The values that do as well as ``at``."""
        values = [place.value for place in self.places]
        return self.places[values.index(self.low) : values.index(self.high) + 1]

    @property
    def outside(self) -> tuple[Place, ...]:
        """The others."""
        return tuple(place for place in self.places if place not in self.inside)

    @property
    def matters(self) -> bool:
        """Whether any value makes a difference."""
        return bool(self.outside)

    @property
    def is_sure(self) -> bool:
        """Whether some value makes a difference beyond doubt: its interval has one sign."""
        return any(place.difference.low > 0 or place.difference.high < 0 for place in self.outside)

    @property
    def bounds(self) -> tuple[float, float]:
        """What a change within the range may do, at least and at most: ends of its intervals."""
        inside = self.inside
        return (
            min(place.difference.low for place in inside),
            max(place.difference.high for place in inside),
        )

    @property
    def farthest(self) -> Place | None:
        """The value that is expected to change most, if any matters."""
        return max(self.outside, key=lambda place: abs(place.difference.estimate), default=None)


@dataclass(frozen=True, kw_only=True)
class NotVaried:
    """A parameter that had one value in all trials, and why, as far as the log says."""

    parameter: Parameter
    value: Value
    why: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What the surrogate says about one setting.

    Attributes:
        setting: The setting that is explained.
        around: The setting around which the slices lie: what is in force in the end.
        changes: From the default to it, the change with the largest gain first.
        rest: What the readings of the setting itself say beyond the sum of the changes.
        slices: One per parameter that was varied.
        not_varied: The others.
        gains: How many settings the surrogate knows a gain of.
        told: Those gains.
    """

    setting: Setting
    around: Setting
    changes: tuple[Change, ...]
    rest: float | None
    slices: tuple[Slice, ...]
    not_varied: tuple[NotVaried, ...]
    gains: int
    told: Mapping[Setting, Gain]


def explain(
    trials: Sequence[Trial],
    setting: Setting,
    *,
    around: Setting,
    fingerprint: Mapping[str, object],
    readings: Mapping[int, tuple[float, float]],
    known: Gain | None = None,
    std: float | None = None,
) -> Explanation | None:
    """Return how a setting comes to its gain; None: too few gains are known.

    Args:
        trials: Of one run, trial 0 is the default, each with the gain that is known of it at last.
        setting: What is to be explained: one of the trials'.
        around: What the slices are to lie around: one of the trials', too.
        fingerprint: Of the run: tensors, ranks and hosts, fixed parameters.
        readings: {trial_id: (mean, variance)} of the log ratio by a trial's own readings; of a
            trial that is not there its gain counts.
        known: The setting's gain by its comparison, or by all that its job knew.
        std: Standard deviation of the logarithm of 1 + ``known``, where pairs say it better than
            its interval does; only then ``known`` is told to the surrogate.
    """
    default = trials[0].params
    read = {
        trial.params: _read_gain(readings[trial.trial_id])
        if trial.trial_id in readings
        else trial.gain
        for trial in trials
        if trial.gain is not None
    }
    if known is not None and std is not None and setting != default:
        read[setting] = known
    if trials[0].trial_id != 0 or len(read) < FEWEST_GAINS:
        return None
    space = _space(trials, fingerprint)
    if not space.dimensions:
        return None
    optimizer = BayesianOptimizer(space, rng=np.random.default_rng(0), max_trials=2)
    optimizer.tell(default, 0.0, 0.0)
    for params, gain in read.items():
        deviation = std if std is not None and params == setting else _deviation(gain)
        optimizer.tell(params, _log(gain.estimate), deviation**2)
    for trial in trials:
        if trial.state is TrialState.REJECTED:
            optimizer.reject(trial.params)
    optimizer.learn()
    changes = _changes(optimizer, default, setting, read)
    slices = [_slice(optimizer, entry, default, around, trials) for entry in space.dimensions]
    rest = None
    if changes and known is not None:
        rest = (1 + known.estimate) / (1 + changes[-1].total.estimate) - 1
    return Explanation(
        setting=setting,
        around=around,
        changes=changes,
        rest=rest,
        slices=tuple(slices),
        not_varied=_not_varied(space, default, fingerprint),
        gains=len(read),
        told=read,
    )


def _read_gain(reading: tuple[float, float]) -> Gain:
    mean, variance = reading
    return gain_of(mean, math.sqrt(variance))


def _space(trials: Sequence[Trial], fingerprint: Mapping[str, object]) -> SearchSpace:
    """Return the settings that the run could try, without what it did not vary."""
    default = trials[0].params
    values = default.as_dict()
    varied = {
        name
        for trial in trials
        for name, value in trial.params.as_dict().items()
        if value != values[name]
    }
    sizes = tensor_sizes(fingerprint)
    return SearchSpace(default, frozen=set(values) - varied, tensors=len(sizes), payload=sum(sizes))


def tensor_sizes(fingerprint: Mapping[str, object]) -> list[int]:
    """Return the bytes of each collective of a training step, as far as the log says."""
    tensors = fingerprint.get("tensors")
    sizes: list[int] = []
    for entry in tensors if isinstance(tensors, list) else ():
        if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], int):
            sizes.append(max(0, entry[1]))
    return sizes


def _log(gain: float) -> float:
    return math.log1p(gain) if gain > -1 else -math.inf


def _deviation(gain: Gain) -> float:
    """Return the standard deviation of the log ratio that a 90 % interval stands for."""
    return max(0.0, _log(gain.high) - _log(gain.low)) / (2 * NORMAL_90)


def gain_of(mean: float, std: float) -> Gain:
    """Return a log ratio as a gain with its 90 % interval."""
    low, high = mean - NORMAL_90 * std, mean + NORMAL_90 * std
    estimate, low, high = (math.expm1(min(x, 50.0)) for x in (mean, low, high))
    return Gain(estimate=estimate, low=max(low, -1.0), high=high)


def _changes(
    optimizer: BayesianOptimizer,
    default: Setting,
    setting: Setting,
    read: Mapping[Setting, Gain],
) -> tuple[Change, ...]:
    """Return the way from the default to ``setting``, the largest gain first.

    Source: Fawcett and Hoos (2016), Analysing differences between algorithm configurations through
    ablation, section 3, by the surrogate as in Biedenkapp et al. (2017), Efficient parameter
    importance analysis via ablation with surrogates.
    """
    values, wanted = default.as_dict(), setting.as_dict()
    names = [name for name in optimizer.space.names if values[name] != wanted[name]]
    left = _never_apart(names, [default, *read])
    present, changes = default, []
    while left:
        nexts = {
            group: present.with_values({name: wanted[name] for name in group}) for group in left
        }
        gains = {
            group: optimizer.difference(params, present, is_smooth=False)
            for group, params in nexts.items()
        }
        group = max(left, key=lambda one: gains[one][0])
        left.remove(group)
        by_name = default.table.by_name
        changes.append(
            Change(
                parts=tuple(
                    Part(parameter=by_name[name], before=values[name], after=wanted[name])
                    for name in group
                ),
                gain=gain_of(*gains[group]),
                total=gain_of(*optimizer.difference(nexts[group], default, is_smooth=False)),
                read=read.get(nexts[group]),
            )
        )
        present = nexts[group]
    return tuple(changes)


def _never_apart(names: Sequence[str], settings: Sequence[Setting]) -> list[tuple[str, ...]]:
    """Group parameters whose values came only together: of one of each, always the same others."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        numbers: dict[Value, int] = {}
        values = (setting.as_dict()[name] for setting in settings)
        pattern = tuple(numbers.setdefault(value, len(numbers)) for value in values)
        groups.setdefault(pattern, []).append(name)
    return [tuple(group) for group in groups.values()]


def _slice(
    optimizer: BayesianOptimizer,
    dimension: Dimension,
    default: Setting,
    setting: Setting,
    trials: Sequence[Trial],
) -> Slice:
    parameter = dimension.parameter
    at = setting.as_dict()[parameter.name]
    tried = {trial.params.as_dict()[parameter.name] for trial in trials}
    values = sorted({*dimension.values, *tried, at})
    places = []
    for value in values:
        params = setting.with_values({parameter.name: value})
        places.append(
            Place(
                value=value,
                over_default=gain_of(*optimizer.difference(params, default)),
                difference=gain_of(*optimizer.difference(params, setting)),
            )
        )
    low = high = values.index(at)
    while low > 0 and _is_alike(places[low - 1]):
        low -= 1
    while high + 1 < len(places) and _is_alike(places[high + 1]):
        high += 1
    return Slice(
        parameter=parameter,
        at=at,
        places=tuple(places),
        low=values[low],
        high=values[high],
        saturation=dimension.saturation,
        values_tried=len(tried),
    )


def _is_alike(place: Place) -> bool:
    return abs(place.difference.estimate) < NO_MATTER


def _not_varied(
    space: SearchSpace, default: Setting, fingerprint: Mapping[str, object]
) -> tuple[NotVaried, ...]:
    values = default.as_dict()
    return tuple(
        NotVaried(parameter=one, value=values[one.name], why=_why_not(one, fingerprint))
        for one in default.table.parameters
        if one.name not in space.names
    )


def _why_not(parameter: Parameter, fingerprint: Mapping[str, object]) -> str:
    """Return why a parameter was not varied, as far as the log says."""
    fixed, tensors = fingerprint.get("fixed"), fingerprint.get("tensors")
    if isinstance(fixed, Mapping) and parameter.name in fixed:
        return f"set by the user ({parameter.env})"
    if parameter.type is bool and fingerprint.get("cross_size") == 1:
        return "all ranks are on one host"
    entries = tensors if isinstance(tensors, list) else []
    operations = {str(entry[0]) for entry in entries if isinstance(entry, list) and entry}
    if parameter.operation and operations and parameter.operation not in operations:
        return f"a step has no {parameter.operation}"
    return "no trial had another value"


def bare_text(parameter: Parameter, value: Value) -> str:
    """Return a value without the parameter's name: ``16 MiB``, ``off``."""
    return value_text(parameter, value).removeprefix(f"{parameter.word} ")


def range_text(one: Slice) -> str:
    """Return the range in which a parameter does not matter: ``0.4 ms to 1.6 ms``."""
    values = [place.value for place in one.inside]
    if len(values) == 1:
        return bare_text(one.parameter, values[0])
    first, last = (bare_text(one.parameter, value) for value in (values[0], values[-1]))
    return f"{first} {'or' if len(values) == 2 else 'to'} {last}"
