"""Results of a tier, and how they are read from what a test runner leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many tests passed, failed and were skipped.

    Attributes:
        seconds: How long they took.
        not_run: Why a tier did not start, or "".
        note: What else is to be said of it.
        failures: {name of a failed test: the first line of why}.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    not_run: str = ""
    note: str = ""
    failures: Mapping[str, str] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            passed=self.passed + other.passed,
            failed=self.failed + other.failed,
            skipped=self.skipped + other.skipped,
            seconds=self.seconds + other.seconds,
            not_run=self.not_run or other.not_run,
            note="; ".join(note for note in (self.note, other.note) if note),
            failures={**self.failures, **other.failures},
        )

    def with_seconds(self, seconds: float) -> Counts:
        return replace(self, seconds=seconds)


def read_junit(paths: Iterable[Path], returncode: int, what: str) -> Counts:
    """Return the counts of one pytest run.

    Args:
        paths: Its JUnit files, one per rank. A test counts as failed if it failed on any rank.
        returncode: The runner's exit code; non-zero without a failed test counts as one failure
            (a crash, a hang, nothing collected).
        what: Name of the run, for the note.
    """
    found = verdicts(paths)
    values = [verdict for verdict, _ in found.values()]
    counts = Counts(
        passed=values.count("passed"),
        failed=values.count("failed"),
        skipped=values.count("skipped"),
        failures={name: why for name, (verdict, why) in found.items() if verdict == "failed"},
    )
    if returncode and not counts.failed:
        why = "no test was collected" if returncode == 5 else f"exit code {returncode}"
        counts = replace(counts, failed=1, note=f"{what}: {why}")
    return counts


def verdicts(paths: Iterable[Path]) -> dict[str, tuple[str, str]]:
    """Return {test: ("passed", "skipped" or "failed", why)}, the worst of what JUnit files say."""
    found: dict[str, tuple[str, str]] = {}
    order = {"passed": 0, "skipped": 1, "failed": 2}
    for path in paths:
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            verdict = _verdict(case)
            found[name] = max(found.get(name, verdict), verdict, key=lambda v: order[v[0]])
    return found


def _verdict(case: ElementTree.Element) -> tuple[str, str]:
    children = {child.tag: (child.get("message") or "").strip() for child in case}
    for tag, verdict in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if tag in children:
            return verdict, next(iter(children[tag].splitlines()), "")
    return "passed", ""
