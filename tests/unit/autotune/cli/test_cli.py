from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli.main import main
from autotune.storage import open_logs
from autotune.storage.contract import RunInfo
from autotune.storage.csv_log import HEADER
from autotune.trial import Certificate, CommParams, Fingerprint, RunState, Trial, TrialState

DATA = Path(__file__).parents[3] / "data"
FINISHED = str(DATA / "horovod-0.28.1-autotune-resnet50-gradients-2-ranks.csv")
CUT_SHORT = str(DATA / "horovod-0.28.1-autotune-cut-short.csv")


def autotune(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.fixture
def tuned(tmp_path: Path) -> str:
    """A certified log of ours: three trials, one of them abandoned."""
    fingerprint = Fingerprint(
        tensors=(), size=4, local_size=2, cross_size=2, versions={"mpi": "5"}, fixed={}
    )
    logs = open_logs(str(tmp_path / "log.csv"), None, host="node1", pid=1)
    logs.start(RunInfo(fingerprint=fingerprint, host="node1", pid=1, seed=7))
    best = Trial(trial_id=1, params=CommParams(fusion_threshold_bytes=123457), score=110.0)
    bad = CommParams(cycle_time_ms=50.0)
    logs.add_trial(Trial(trial_id=0, params=CommParams(), score=100.0))
    logs.add_trial(best)
    logs.add_trial(Trial(trial_id=2, params=bad, score=1.0, state=TrialState.ABANDONED))
    logs.add_certificate(
        Certificate(
            trial_id=1,
            pairs=9,
            gain=0.1,
            gain_low=0.03,
            gain_high=0.2,
            alpha=0.01,
            certified=True,
            reason="nine pairs agreed",
        )
    )
    logs.finish_run(RunState.DONE, best)
    logs.close()
    return str(tmp_path / "log.csv")


def test_best_of_a_finished_log_is_its_last_line(capsys) -> None:
    assert main(["best", FINISHED, "--format", "env"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "HOROVOD_HIERARCHICAL_ALLREDUCE=0",
        "HOROVOD_HIERARCHICAL_ALLGATHER=1",
        "HOROVOD_CACHE_CAPACITY=1024",
        "HOROVOD_CYCLE_TIME=1.87024",
        f"HOROVOD_FUSION_THRESHOLD={int(1.42992 * 2**20)}",
    ]
    assert err == ""


def test_best_of_an_unfinished_log_is_the_best_so_far_with_a_warning(capsys) -> None:
    assert main(["best", CUT_SHORT, "--format", "flags"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("--fusion-threshold-mb 13.297")
    assert out.count("\n") == 1
    assert "tuning has not finished" in err
    assert "29 trials" in err


def test_text_is_the_default_and_says_unit_and_direction(capsys) -> None:
    assert main(["best", FINISHED]) == 0
    assert "2148.44 bytes/us, higher is better" in capsys.readouterr().out


def test_show_lists_trials_state_gain_and_marks_the_best(capsys, tuned: str) -> None:
    assert main(["show", tuned]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == f"{tuned}: 3 trials, finished"
    assert "4 ranks, 2 a host, 2 host(s)" in lines[1]
    assert [line for line in lines if line.endswith(" *")] == [
        line for line in lines if "0.117738" in line
    ]
    assert "+10.0" in out
    assert "abandoned" in out
    assert "bytes/us, higher is better" in out
    assert "+10.0 % over the default (+3.0 to +20.0), certified" in out
    assert "nine pairs agreed" in out
    assert err == ""


def test_show_of_an_unfinished_log_says_so(capsys) -> None:
    assert main(["show", CUT_SHORT]) == 0
    out = capsys.readouterr().out
    assert "29 trials, unfinished" in out
    assert "* is the best so far" in out


def test_the_database_gives_the_answer_of_the_csv(capsys, tuned: str) -> None:
    answers = []
    for log in (tuned, tuned.replace(".csv", ".db"), os.path.dirname(tuned)):
        assert main(["best", log, "--format", "json"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] == answers[2]
    assert '"local_size": 2' in answers[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no such file"),
        ("", "no trial"),
        (HEADER + "\n", "no trial"),
        ("a,b\n", "not an auto"),
    ],
)
@pytest.mark.parametrize("task", [["best"], ["show"], ["replay"]])
def test_no_answer_is_1_with_one_line(capsys, tmp_path, content, reason, task) -> None:
    log = tmp_path / "log.csv"
    if content is not None:
        log.write_text(content)
    assert main([*task, str(log), *(["--", "true"] if task == ["replay"] else [])]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert str(log) in err and reason in err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["best"],
        ["worst", FINISHED],
        ["best", FINISHED, "--format", "xml"],
        ["best", FINISHED, "--", "true"],
        ["replay", FINISHED],
        ["replay", FINISHED, "--"],
        ["replay", FINISHED, "true"],
    ],
)
def test_wrong_usage_is_2(capsys, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert capsys.readouterr().out == ""


class TestReplay:
    def test_the_command_sees_the_five_variables_and_keeps_its_code(self, tuned: str) -> None:
        script = "env | grep ^HOROVOD_ | sort; exit 7"
        done = autotune("replay", tuned, "--", "sh", "-c", script, HOROVOD_AUTOTUNE="1")
        assert done.returncode == 7
        assert done.stdout.splitlines() == [
            "HOROVOD_AUTOTUNE=0",
            f"HOROVOD_AUTOTUNE_REPLAY={tuned}",
            "HOROVOD_CACHE_CAPACITY=1024",
            "HOROVOD_CYCLE_TIME=1.0",
            "HOROVOD_FUSION_THRESHOLD=123457",
            "HOROVOD_HIERARCHICAL_ALLGATHER=0",
            "HOROVOD_HIERARCHICAL_ALLREDUCE=0",
        ]
        assert "HOROVOD_AUTOTUNE is switched off" in done.stderr

    def test_arguments_arrive_as_they_are(self, tuned: str) -> None:
        arguments = ["a b", "--", "$HOME", "", "--format", "\n"]
        code = "import sys; print(sys.argv[1:])"
        done = autotune("replay", tuned, "--", sys.executable, "-c", code, *arguments)
        assert done.stdout == f"{arguments}\n"

    @pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
    def test_a_command_that_cannot_run(self, capsys, tuned: str, command: str, code: int) -> None:
        assert main(["replay", tuned, "--", command]) == code
        assert command in capsys.readouterr().err


def test_a_closed_pipe_is_no_traceback() -> None:
    command = f"{sys.executable} -m autotune show {FINISHED} | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


TIMELINE = str(DATA / "horovod-0.28.1-timeline-cpu-2-ranks.json")
ANSWERS = [
    ["best", FINISHED],
    ["show", FINISHED],
    ["best", FINISHED, "--format", "json"],
    ["timeline", TIMELINE],
    ["timeline", TIMELINE, "--format", "json"],
]


@pytest.mark.parametrize("arguments", ANSWERS)
@pytest.mark.parametrize(
    ("redirection", "why"), [(">/dev/full", "No space left on device"), (">&-", "closed")]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_answer_that_cannot_be_printed_is_1_with_one_line(
    arguments: list[str], redirection: str, why: str, unbuffered: str
) -> None:
    command = shlex.join([sys.executable, "-m", "autotune", *arguments])
    done = subprocess.run(
        ["sh", "-c", f"{command} {redirection}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("autotune: standard output: ") and why in done.stderr


def test_a_command_is_replayed_without_standard_output(tuned: str) -> None:
    command = shlex.join([sys.executable, "-m", "autotune", "replay", tuned, "--", "true"])
    done = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_standard_error_the_answer_is_still_nothing_else() -> None:
    command = shlex.join([sys.executable, "-m", "autotune", "best", CUT_SHORT])
    answers = [
        subprocess.run(["sh", "-c", f"{command} {where}"], stdout=subprocess.PIPE).stdout
        for where in ("2>/dev/null", "2>&-", "2>/dev/full")
    ]
    assert answers[0] == answers[1] == answers[2] != b""


@pytest.mark.parametrize("task", ["show", "timeline"])
def test_characters_that_the_terminal_lacks_are_replaced(tmp_path: Path, task: str) -> None:
    path = tmp_path / "l\u00f6g"
    path.write_bytes(Path(TIMELINE if task == "timeline" else FINISHED).read_bytes())
    done = autotune(task, str(path), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "l\\xf6g" in done.stdout


@pytest.mark.parametrize("task", ["best", "show", "timeline", "runs"])
def test_what_may_never_end_is_not_read(tmp_path: Path, task: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (str(tmp_path / "fifo"), "/dev/null", "/dev/zero"):
        done = subprocess.run(
            [sys.executable, "-m", "autotune", task, path],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 1
        assert f"{path}: is not a regular file: expected" in done.stderr


def test_a_timeline_may_come_through_a_pipe() -> None:
    with open(TIMELINE, "rb") as file, subprocess.Popen(["cat"], stdin=file, stdout=-1) as cat:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", "timeline", "/dev/stdin"],
            stdin=cat.stdout,
            capture_output=True,
            text=True,
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_best_imports_nothing_heavy_and_answers_at_once() -> None:
    code = (
        "import sys; from autotune.cli.main import main; main(['best', sys.argv[1]])\n"
        "heavy = {'numpy', 'sklearn', 'skopt', 'sqlite_utils', 'rich', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    times: list[float] = []
    while len(times) < 5 and min(times, default=1) >= 0.3:
        begin = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", code, FINISHED], capture_output=True, text=True
        )
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(end.ru_utime - begin.ru_utime + end.ru_stime - begin.ru_stime)
        assert done.stdout.splitlines()[-1] == "[]"
    assert min(times) < 0.3, "seconds of processor time, whoever else uses the machine"
