"""A discovery script that fails, hangs or prints rubbish costs a sentence, and no rank."""

from __future__ import annotations

import pytest

from e2e.commands import Commands, wait_until
from e2e.elastic.running import Running

pytestmark = pytest.mark.timeout(300)

SCRIPT = """#!/bin/sh
case "$(cat {folder}/mood)" in
  fails) echo "no database" >&2; exit 4;;
  hangs) sleep 100;;
  rubbish) echo "<html>";;
  nothing) ;;
  *) echo localhost:2;;
esac
"""


def test_whatever_the_script_does_the_job_keeps_its_hosts(commands: Commands) -> None:
    folder = commands.folder
    script, mood = folder / "find-hosts", folder / "mood"
    script.write_text(SCRIPT.format(folder=folder))
    script.chmod(0o755)
    mood.write_text("fails")
    errors = folder / "errors"
    flags = ["-np", "2", "--min-np", "2", "--host-discovery-script", str(script)]
    with errors.open("w") as file:
        job = Running(commands, flags, stderr=file)
        said = (
            ("fails", "fails with exit code 4: no database; it is asked again"),
            ("good", "works again"),
            ("rubbish", "got '<html>'; the job keeps the hosts it has"),
            ("nothing", "finds no host; the job keeps the hosts it has"),
            ("hangs", "takes longer than 10 s; the job keeps the hosts it has"),
        )
        for kind, words in said:
            mood.write_text(kind)
            wait_until(lambda words=words: words in errors.read_text())
            if kind != "fails":
                job.wait_for_step(len(job.lines("step")) + 5, size=2)
        job.stop()
        code, _ = job.result()
    assert code == 0, errors.read_text()
    assert errors.read_text().count("fails with exit code 4") == 1
    assert {line["size"] for line in job.lines()} == {2}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("-np 2 --min-np 3", "-np 2: expected a number from --min-np 3"),
        ("--min-np 3 --max-np 2", "--max-np 2: expected at least --min-np"),
        ("-np 4 --min-np 2 -H localhost:2", "the hosts have room for 2 ranks"),
        ("--min-np 2 --mpi", "elastic jobs start without MPI"),
    ],
)
def test_what_cannot_be_is_one_sentence(commands: Commands, flags: str, words: str) -> None:
    result = commands.run("horovodrun", *flags.split(), "true")
    assert result.returncode == 2 and words in result.stderr.splitlines()[-1]


def test_a_job_for_which_there_are_never_enough_hosts_ends_in_time(commands: Commands) -> None:
    words = ["--min-np", "2", "--elastic-timeout", "2", "--host-discovery-script", "echo localhost"]
    result = commands.run("horovodrun", *words, "true")
    assert result.returncode == 1
    assert "after 2 s the hosts have room for 1 of at least 2 ranks" in result.stderr
