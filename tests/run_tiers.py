"""Runs test tiers and closes with what failed and a table: tier, passed, failed, not run and why.

    python tests/run_tiers.py            every tier that this machine can run
    python tests/run_tiers.py gpu unit   these; one that lacks what it needs fails and says why

Exit code 0 when nothing failed. Every command has a time limit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tiers import commands, needs
from tiers.counts import Counts

ROOT = Path(__file__).resolve().parent.parent

REASONS, REASON_LENGTH = 8, 300
"""So many reasons of a tier are printed at the end, each of so many characters."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One row of the table.

    Attributes:
        name: Name of the tier and, where it has one, of its folder in tests/.
        missing: Returns why the tier cannot run here, or "".
        run: Runs it and returns the counts.
    """

    name: str
    missing: Callable[[], str]
    run: Callable[[Mapping[str, str]], Counts]


TIERS = (
    Tier(name="lint", missing=needs.nothing, run=commands.lint),
    Tier(name="unit", missing=needs.tests("unit"), run=commands.unit),
    Tier(name="simulated", missing=needs.tests("simulated"), run=commands.simulated),
    Tier(name="engine", missing=needs.tests("engine", "*.cc"), run=commands.engine),
    Tier(name="parallel", missing=needs.tests("parallel"), run=commands.parallel),
    Tier(name="e2e", missing=needs.tests("e2e"), run=commands.e2e),
    Tier(name="tensorflow", missing=needs.tensorflow, run=commands.tensorflow),
    Tier(name="browser", missing=needs.browser, run=commands.browser),
    Tier(name="cluster", missing=needs.cluster, run=commands.cluster),
    Tier(name="chaos", missing=needs.chaos, run=commands.chaos),
    Tier(name="gpu", missing=needs.gpu, run=commands.gpu),
)


def main(names: list[str]) -> int:
    """Run the tiers called ``names`` (all where empty) and return the exit code."""
    unknown = sorted(set(names) - {tier.name for tier in TIERS})
    if unknown:
        print(f"no tier {unknown[0]!r}; there are {', '.join(t.name for t in TIERS)}")
        return 2
    os.chdir(ROOT)
    chosen = [tier for tier in TIERS if tier.name in names or not names]
    environ = test_environment(os.environ)
    if not names:
        environ.setdefault("CHAOS_SECONDS", "180")
    rows = [(tier.name, run_tier(tier, environ, by_name=bool(names))) for tier in chosen]
    print_failures(rows)
    print_table(rows)
    total = sum((counts for _, counts in rows), Counts())
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed else 0


def run_tier(tier: Tier, environ: Mapping[str, str], *, by_name: bool) -> Counts:
    """Run one tier; a missing device is a failure only where the tier was asked for by name."""
    begin = time.monotonic()
    reason = tier.missing()
    if reason:
        print(f"=== {tier.name}: not run: {reason}", flush=True)
        return Counts(failed=int(by_name), skipped=int(not by_name), not_run=reason)
    print(f"=== {tier.name}", flush=True)
    try:
        counts = tier.run(environ)
    except subprocess.TimeoutExpired as error:
        counts = Counts(failed=1, note=f"no end within {error.timeout:.0f} s")
    return counts.with_seconds(time.monotonic() - begin)


def test_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``environ`` with one thread per rank and, for root only, MPI's permission to run.

    Bytecode is kept, whatever ``environ`` says: the tests start hundreds of processes, and each
    would compile the same modules.
    """
    result = {name: value for name, value in environ.items() if not name.startswith("HOROVOD_")}
    result.pop("PYTHONDONTWRITEBYTECODE", None)
    result["OMP_NUM_THREADS"] = "1"
    result["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", "")])
    if os.getuid() == 0:
        for prefix in ("OMPI", "PRTE"):
            result[f"{prefix}_ALLOW_RUN_AS_ROOT"] = "1"
            result[f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return result


def print_failures(rows: list[tuple[str, Counts]]) -> None:
    """Print each reason for which tests of a tier failed, with the first of them."""
    for tier, counts in rows:
        tests: dict[str, list[str]] = {}
        for name, why in counts.failures.items():
            tests.setdefault(why[:REASON_LENGTH], []).append(name)
        for why, names in list(tests.items())[:REASONS]:
            others = f" and {len(names) - 1} others" if len(names) > 1 else ""
            print(f"{tier}: failed: {names[0]}{others}: {why}")


def print_table(rows: list[tuple[str, Counts]]) -> None:
    """Print one line per tier."""
    print(f"\n{'tier':<10} {'passed':>7} {'failed':>7} {'skipped':>8} {'time':>7}  remarks")
    for name, counts in rows:
        remark = f"not run: {counts.not_run}" if counts.not_run else counts.note
        print(
            f"{name:<10} {counts.passed:>7} {counts.failed:>7} {counts.skipped:>8} "
            f"{counts.seconds:>5.0f} s  {remark}".rstrip()
        )
    print(flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
