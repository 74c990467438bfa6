"""A table that nobody has thought of: a program, run by ``test_made_up_table``.

It registers the table before any other module looks, tunes a simulated job to its end with logs
that the service keeps, and prints what each room has to say, as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys

from autotune import space
from autotune.tables import SETTINGS
from autotune.trial import Setting


def row(name: str, kind: type, default: float, low: float, high: float, **more: object):
    return space.Parameter(
        name=name,
        unit="0 or 1" if kind is bool else "things",
        type=kind,
        default=default,
        valid_low=low,
        valid_high=high,
        search_low=more.pop("search_low", low),
        search_high=high,
        word=name,
        env=f"MADE_UP_{name.upper()}",
        flag=f"--{name}",
        column=f"{name}_column",
        **more,
    )


ROWS = (
    row("share", float, 0.5, 0.0, 1.0, scale="linear"),
    row("rate", float, 1.0, 0.0, 100.0, search_low=0.01, scale="log"),
    row("workers", int, 4, 1, 12, scale="linear"),
    row("eager", bool, True, 0, 1, scale="bool", operation="gossip"),
    row(
        *("block", int, 2**20, 0, 2**24),
        search_low=2**16,
        scale="log2",
        zero_is_special=True,
        saturates_at="payload",
        shown_unit="KiB",
        units_in_shown=1024,
    ),
)


MadeUp = dataclasses.make_dataclass(
    "MadeUp",
    [(one.name, one.type, one.type(one.default)) for one in ROWS],
    bases=(Setting,),
    namespace={"table": space.Table(name="made_up", parameters=ROWS)},
    frozen=True,
    kw_only=True,
)
SETTINGS["made_up"] = MadeUp

from autotune.cli.formats import formats_of, render  # noqa: E402
from autotune.cli.show import table  # noqa: E402
from autotune.result import read_result  # noqa: E402
from autotune.service.logkeeper import LogKeeper  # noqa: E402
from autotune.service.protocol import Hello  # noqa: E402
from autotune.storage.reader import read_log  # noqa: E402
from autotune.tuning.changes import Line, Progress  # noqa: E402
from autotune.tuning.events import Entry  # noqa: E402
from autotune.tuning.steps.records import TunerSettings  # noqa: E402
from autotune.tuning.tuner import Tuner  # noqa: E402
from simulated.job import Job  # noqa: E402


def waiting_ms(params: object) -> float:
    """Best with a share of 0.2, a rate of 10, 9 workers, not eager, a block of 256 KiB."""
    x = math.log10(max(params.rate, 0.01)) - 1
    y = math.log2(max(params.block, 2**15)) - 18
    z = (params.workers - 9) / 4
    return 20 * (1 + (params.share - 0.2) ** 2 + 0.3 * x * x + 0.02 * y * y + 0.2 * z * z) + 5 * (
        params.eager
    )


class Logs:
    """The driver's way into the logs, as the service goes it."""

    def __init__(self, path: str) -> None:
        self._hello = Hello(
            csv_path=path,
            size=2,
            local_size=2,
            cross_size=1,
            host="node1",
            pid=1,
            table="made_up",
        )
        self.keeper = LogKeeper.open(self._hello)
        self.has_begun = False

    def take(self, run: Job, tuner: Tuner, seen: int) -> int:
        for event in run.events[seen:]:
            if not self.has_begun and self.keeper is not None:
                self.keeper.start(self._hello, [("gossip", 8)], seed=1)
                self.has_begun = True
            if isinstance(event, Entry):
                self.keeper.take(event)
        self.keeper.keep_best(tuner.standing)
        return len(run.events)


def main(path: str) -> None:
    settings = TunerSettings(seed=1, max_samples=12, prior=False)
    tuner = Tuner(settings=settings, seed=1, size=2, baseline=MadeUp())
    run = Job(surface=waiting_ms, seed=1, params=MadeUp(), operations=[("gossip", 2**24)])
    logs, seen = Logs(path), 0
    while run.done is None and run.steps < 4000:
        run.drive(tuner, most_steps=run.steps + 1)
        seen = logs.take(run, tuner, seen)
    complaints = logs.keeper.complaints()
    logs.keeper.close()
    result = read_result(path)
    print(
        json.dumps(
            {
                "done": run.done is not None and run.done.params,
                "certified": run.done is not None and run.done.certified,
                "complaints": complaints,
                "said": [event.text for event in run.of(Line) + run.of(Progress)],
                "csv": open(path, encoding="utf-8").read(),
                "tried": [trial.params.as_dict() for trial in run.trials],
                "read": [trial.params.as_dict() for trial in read_log(path).trials],
                "result": result.params.as_dict(),
                "finished": result.finished,
                "show": table(read_log(path)),
                "formats": {name: render(result, name) for name in formats_of(result.params.table)},
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
