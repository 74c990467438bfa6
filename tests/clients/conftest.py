"""Options, and the table of results that tests/README.md holds."""

from __future__ import annotations

import datetime
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from clients.exceptions import reason
from clients.suites import CHECKOUTS, ROOT, Outcome

OUTCOMES = pytest.StashKey[dict[str, Outcome]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("clients")
    group.addoption("--peers", help="folder with the checkouts of the suites")
    group.addoption("--environments", help="folder outside the repository where they are kept")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[OUTCOMES] = {}


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    outcomes = config.stash[OUTCOMES]
    if outcomes:
        terminalreporter.section("suites of clients and of the peer")
        terminalreporter.write_line("\n".join(table(outcomes)))


def table(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """Yield lines of Markdown: versions, numbers of each suite, failed tests with the reason."""
    words = ["git", "log", "-1", "--format=%h"]
    commit = subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    versions = sorted({each for outcome in outcomes.values() for each in outcome.versions})
    yield f"{datetime.date.today()}, commit {commit}, Python {platform.python_version()},"
    yield f"{', '.join(versions)}:"
    yield ""
    yield "| suite | passed | failed, with a reason | failed | skipped | seconds |"
    yield "| --- | --- | --- | --- | --- | --- |"
    reasons: dict[str, set[str]] = {}
    for suite, outcome in outcomes.items():
        failed = outcome.names("failed")
        for test in failed:
            why = reason(suite, test) or "no reason is known"
            reasons.setdefault(why, set()).add(test.rpartition("::")[2])
        explained = [test for test in failed if reason(suite, test)]
        counts = (
            len(outcome.names("passed")),
            len(explained),
            len(failed) - len(explained),
            len(outcome.names("skipped")),
            round(outcome.seconds),
        )
        yield f"| {suite} | {' | '.join(map(str, counts))} |"
    yield ""
    for why, tests in reasons.items():
        yield f"* {', '.join(f'`{test}`' for test in sorted(tests))}: {why}."


@pytest.fixture(scope="session")
def peers(request: pytest.FixtureRequest) -> Path:
    given = request.config.getoption("--peers")
    if not given:
        how = "\n".join(f"    {each.command}" for each in CHECKOUTS.values())
        pytest.fail(f"--peers FOLDER: a folder with the checkouts that these lines make:\n{how}")
    return Path(given).absolute()


@pytest.fixture(scope="session")
def environments(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = request.config.getoption("--environments")
    folder = Path(given).absolute() if given else tmp_path_factory.mktemp("environments")
    assert ROOT not in (folder, *folder.parents), "the environments stay outside the repository"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> dict[str, Outcome]:
    """What came of the suites so far; the summary shows it."""
    return request.config.stash[OUTCOMES]
