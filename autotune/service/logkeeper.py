"""The service's hold on the trial logs: whatever becomes of them, the job goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Protocol

from autotune.service.protocol import Hello
from autotune.storage import open_logs
from autotune.storage.contract import Fresh, RunInfo, Start, TrialStore
from autotune.storage.locking import PATIENCE_S
from autotune.tables import settings_of
from autotune.trial import Certificate, Fingerprint, Sample, Standing, Trial
from autotune.tuning.events import Entry, Rejection


class JobLogs(TrialStore, Protocol):
    """What ``open_logs`` returns."""

    has_result: bool
    notes: list[str]
    troubles: list[str]

    def start(self, run: RunInfo, *, retune: bool = False) -> Start:
        """Begin, resume or replay a run."""
        ...


def fingerprint(hello: Hello, operations: Sequence[tuple[str, int]]) -> Fingerprint:
    """Return what makes a job with these training steps the same as another."""
    return Fingerprint(
        tensors=tuple(sorted((str(operation), int(size)) for operation, size in operations)),
        size=hello.size,
        local_size=hello.local_size,
        cross_size=hello.cross_size,
        versions=dict(hello.versions),
        fixed=dict(hello.fixed),
        table=hello.table,
        baseline=dict(hello.baseline),
    )


class LogKeeper:
    """Passes events on to the logs of one job, and survives their failure."""

    def __init__(self, logs: JobLogs | None, *, where: str) -> None:
        """Keep ``logs`` (None: there are none); ``where`` is what messages call them."""
        self._logs = logs
        self._where = where
        self._complaints: list[str] = []
        self._standing: Standing | None = None
        self._has_failed = False
        self._told = 0
        self._extra_notes: list[str] = []

    @classmethod
    def open(cls, hello: Hello) -> LogKeeper:
        """Open the logs that the job asks for.

        Raises:
            LogError: A path cannot be used, or another live job uses it.
        """
        if hello.csv_path is None and hello.db_path is None:
            keeper = cls(None, where="")
            keeper._extra_notes.append(
                "autotune: tunes without a log: set HOROVOD_AUTOTUNE_LOG=log.csv to keep the result"
            )
            return keeper
        table = settings_of(hello.table).table
        logs = open_logs(
            hello.csv_path,
            hello.db_path,
            host=hello.host,
            pid=hello.pid,
            table=table,
            patience_s=PATIENCE_S if hello.patience_s is None else hello.patience_s,
        )
        return cls(logs, where=str(hello.csv_path or hello.db_path))

    def start(
        self,
        hello: Hello,
        operations: Sequence[tuple[str, int]],
        *,
        seed: int,
        retune: bool = False,
    ) -> Start:
        """Begin, resume or replay this job's run; without working logs it is a fresh one.

        ``retune``: begin a new run although there is a result, which it is to replace.
        """
        run = RunInfo(
            fingerprint=fingerprint(hello, operations),
            host=hello.host,
            pid=hello.pid,
            seed=seed,
            settings=asdict(hello.settings),
        )
        found: list[Start] = []
        self._standing = None
        self._guard(lambda logs: found.append(logs.start(run, retune=retune)))
        return found[0] if found else Fresh()

    @property
    def has_result(self) -> bool:
        """Whether the CSV held a finished run, of this job or another, when it was opened."""
        return self._logs is not None and self._logs.has_result

    def take(self, event: Entry) -> None:
        """Write an entry."""
        if isinstance(event, Sample):
            self._guard(lambda logs: logs.add_sample(event))
        elif isinstance(event, Trial):
            self._guard(lambda logs: logs.add_trial(event))
        elif isinstance(event, Rejection):
            self._guard(lambda logs: logs.reject_trial(event.trial))
        elif isinstance(event, Certificate):
            self._guard(lambda logs: logs.add_certificate(event))
        else:
            self._guard(lambda logs: logs.finish_run(event.state, event.best))

    def keep_best(self, standing: Standing | None) -> None:
        """Write what the job holds for the best, if that has changed."""
        if standing is not None and standing != self._standing:
            self._standing = standing
            self._guard(lambda logs: logs.set_best(standing))

    def close(self) -> None:
        """Close the logs; what there is to say about it is in ``complaints`` and ``notes``."""
        self._guard(lambda logs: logs.close())

    def notes(self) -> list[str]:
        """Return what the logs have to say about their files, each sentence once."""
        texts, self._extra_notes = self._extra_notes, []
        notes = list(self._logs.notes) if self._logs is not None else []
        fresh, self._told = notes[self._told :], len(notes)
        return texts + [f"autotune: {text}" for text in fresh]

    def complaints(self) -> list[str]:
        """Return what was not yet reported: logs that fail, or that work again."""
        complaints, self._complaints = self._complaints, []
        if self._logs is not None:
            complaints += [f"autotune: {text}" for text in self._logs.troubles]
            self._logs.troubles.clear()
        return complaints

    def _guard(self, action: Callable[[JobLogs], None]) -> None:
        if self._logs is None:
            return
        try:
            action(self._logs)
        except Exception as error:  # a fault of ours: never the end of the job
            if not self._has_failed:
                self._complaints.append(
                    f"autotune: {self._where} is not written properly ({error}); tuning goes on"
                )
            self._has_failed = True
