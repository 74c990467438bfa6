from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli.main import main
from autotune.result import read_result
from autotune.space import HOROVOD
from autotune.storage import open_logs
from autotune.storage.contract import RunInfo
from autotune.trial import (
    Certificate,
    CommParams,
    Fingerprint,
    Gain,
    RunState,
    Standing,
    Trial,
    TrialState,
)

HEADER = ",".join(HOROVOD.columns)

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


CERTIFICATE = Certificate(
    trial_id=1,
    pairs=9,
    gain=0.1,
    gain_low=0.03,
    gain_high=0.2,
    alpha=0.01,
    certified=True,
    reason="nine pairs agreed",
)
DEFAULT = Trial(trial_id=0, params=CommParams(), score=100.0)
PROMISING = Trial(
    trial_id=1,
    params=CommParams(fusion_threshold_bytes=123457),
    score=124.0,
    gain=Gain(estimate=0.24, low=0.02, high=0.46),
)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes a log of ours with three trials, one of them abandoned; returns the CSV's path."""

    def write(
        *,
        standing: Standing | None = None,
        certificate: Certificate | None = None,
        best: Trial | None = None,
        gains: bool = True,
    ) -> str:
        fingerprint = Fingerprint(
            tensors=(), size=4, local_size=2, cross_size=2, versions={"mpi": "5"}, fixed={}
        )
        bad = Gain(estimate=-0.6, low=-0.8, high=-0.5)
        trials = (
            DEFAULT,
            PROMISING,
            Trial(
                trial_id=2,
                params=CommParams(cycle_time_ms=50.0),
                score=40.0,
                state=TrialState.ABANDONED,
                gain=bad,
            ),
        )
        logs = open_logs(str(tmp_path / "log.csv"), None, host="node1", pid=1)
        logs.start(RunInfo(fingerprint=fingerprint, host="node1", pid=1, seed=7))
        for trial in trials:
            logs.add_trial(trial if gains else replace(trial, gain=None))
        if standing is not None:
            logs.set_best(standing)
        if certificate is not None:
            logs.add_certificate(certificate)
        if best is not None:
            logs.finish_run(RunState.DONE, best)
        logs.close()
        return str(tmp_path / "log.csv")

    return write


@pytest.fixture
def tuned(write: Callable[..., str]) -> str:
    """A certified log of ours."""
    gain = Gain(estimate=0.1, low=0.03, high=0.2)
    return write(certificate=CERTIFICATE, best=replace(PROMISING, score=110.0, gain=gain))


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
    assert " 110   +10.0 (+3.0 to +20.0)   complete   *" in out
    assert "  40  -60.0 (-80.0 to -50.0)  abandoned" in out
    assert "bytes/us, higher is better" in out
    assert "+10.0 % over the default (+3.0 to +20.0), certified" in out
    assert "nine pairs agreed" in out
    assert err == ""


class TestUnfinished:
    """Of a log that is not finished, every number is one that would hold."""

    GAIN = Gain(estimate=0.12, low=0.03, high=0.21)

    @pytest.fixture
    def standing(self) -> Standing:
        return Standing(best=replace(PROMISING, score=112.0), gain=self.GAIN)

    @pytest.mark.parametrize("place", [".csv", ".db"])
    def test_the_answer_is_the_default_while_there_is_doubt(
        self, capsys, write, standing: Standing, place: str
    ) -> None:
        log = write(standing=standing).replace(".csv", place)
        assert main(["best", log]) == 0
        out, err = capsys.readouterr()
        assert "67108864 bytes (64 MiB)" in out and "tuning                  not finished" in out
        assert "score                   100 bytes/us" in out
        gain = "fusion 0.1177 MiB: +12.0 % over the default (+3.0 to +21.0), not certified yet"
        assert gain in out
        assert err == (
            f"autotune: {log}: tuning has not finished; the answer is the default: no setting is "
            "better beyond doubt yet; most promising of 3 trials: fusion 0.1177 MiB, gain +12.0 % "
            "(90 %: +3.0 to +21.0 %)\n"
        )

    def test_the_answer_is_what_is_better_beyond_doubt(self, capsys, write, standing) -> None:
        log = write(standing=replace(standing, proven=True))
        assert main(["best", log]) == 0
        out, err = capsys.readouterr()
        assert "123457 bytes" in out and "score                   112 bytes/us" in out
        assert (
            "gain                    +12.0 % over the default (+3.0 to +21.0), not certified yet"
            in out
        )
        assert "better than the default beyond doubt, gain +12.0 % (90 %: +3.0 to" in err
        assert main(["best", log, "--require-certified"]) == 1

    def test_a_job_that_found_nothing_better_says_so(self, capsys, write) -> None:
        assert main(["best", write(standing=Standing(best=DEFAULT))]) == 0
        out, err = capsys.readouterr()
        assert "gain                    not certified yet" in out
        assert "the answer is the default: the best of 3 trials so far" in err

    def test_the_csv_alone_gives_the_best_so_far(self, capsys, write, standing) -> None:
        log = write(standing=standing)
        os.unlink(log.replace(".csv", ".db"))
        assert main(["best", log]) == 0
        out, err = capsys.readouterr()
        assert "123457 bytes" in out and "gain" not in out
        assert "tuning has not finished; this is the best of 3 trials so far" in err

    @pytest.mark.parametrize("proven", [True, False])
    def test_a_saved_result_keeps_what_its_gain_is_about(
        self, capsys, tmp_path, write, standing, proven: bool
    ) -> None:
        log = write(standing=replace(standing, proven=proven))
        assert main(["best", log, "--format", "json"]) == 0
        (tmp_path / "best.json").write_text(capsys.readouterr().out)
        saved, read = read_result(str(tmp_path / "best.json")), read_result(log)
        assert saved == replace(read, warnings=())
        assert saved.promising == (None if proven else PROMISING.params)

    def test_replay_takes_the_same_answer(self, write, standing) -> None:
        done = autotune("replay", write(standing=standing), "--", "env")
        assert f"HOROVOD_FUSION_THRESHOLD={64 * 2**20}\n" in done.stdout
        assert "the answer is the default" in done.stderr

    def test_show_has_one_score_and_one_gain_for_one_setting(self, capsys, write, standing) -> None:
        assert main(["show", write(standing=standing)]) == 0
        out = capsys.readouterr().out
        (marked,) = [line.split() for line in out.splitlines() if line.endswith(" *")]
        assert marked[6:] == ["112", "+12.0", "(+3.0", "to", "+21.0)", "complete", "*"]
        assert "124" not in out and "+24.0" not in out
        assert "gain with its 90 % interval, not certified yet" in out
        assert "the answer is the default as long as in doubt" in out

    def test_runs_shows_the_gain_as_not_compared_yet(self, capsys, write, standing) -> None:
        assert main(["runs", write(standing=standing)]) == 0
        assert "unfinished  +12.0 % (+3.0 to +21.0), not certified yet" in capsys.readouterr().out


def test_the_certificate_is_the_last_word_on_what_it_compared(capsys, write) -> None:
    refuted = replace(CERTIFICATE, gain=-0.006, gain_low=-0.03, gain_high=0.02, certified=False)
    assert main(["show", write(certificate=refuted, best=DEFAULT)]) == 0
    out = capsys.readouterr().out
    default, compared = (line.split()[6:] for line in out.splitlines()[6:8])
    assert default == ["100", "default", "complete", "*"]
    assert compared == ["99.4", "-0.6", "(-3.0", "to", "+2.0)", "complete"]
    assert "+24.0" not in out and "124" not in out


def test_a_log_without_gains_compares_no_scores(capsys, write) -> None:
    for log in (write(gains=False), FINISHED):
        assert main(["show", log]) == 0
        out = capsys.readouterr().out
        assert "over the default" not in out and "need not compare" in out


def test_scores_of_a_log_of_ours_without_its_database_compare(capsys, tuned: str) -> None:
    os.remove(os.path.splitext(tuned)[0] + ".db")
    assert main(["show", tuned]) == 0
    out = capsys.readouterr().out
    assert "that of the default times 1 + gain" in out and "need not compare" not in out


@pytest.mark.parametrize("score", ["nan", "-5", "inf"])
def test_a_best_line_whose_score_is_none_is_no_answer(capsys, tuned: str, score: str) -> None:
    with open(tuned) as file:
        *rows, last = file.read().splitlines()
    with open(tuned, "w") as file:
        file.write("\n".join([*rows, f"{last.rpartition(',')[0]},{score}"]) + "\n")
    main(["best", tuned])
    why = "line 5, the last one, is ignored: score: expected a number of 0 or more"
    assert why in "".join(capsys.readouterr())


def test_a_best_line_that_cannot_be_used_is_named_with_its_file(capsys, tuned: str) -> None:
    """Case U14."""
    with open(tuned) as file:
        *rows, _ = file.read().splitlines()
    with open(tuned, "w") as file:
        file.write("\n".join([*rows, "0,0,1024,-3,1,110"]) + "\n")
    why = f"autotune: {tuned}: line 5, the last one, is ignored: cycle_time_ms: expected"
    assert main(["best", tuned]) == 0
    out, err = capsys.readouterr()
    assert "123457 bytes" in out and "tuning                  finished" in out
    assert err.startswith(why) and err.count("\n") == 1
    os.unlink(tuned.replace(".csv", ".db"))
    assert main(["best", tuned]) == 0
    why_, whether = capsys.readouterr().err.splitlines()
    assert why_.startswith(why)
    assert whether == (
        f"autotune: {tuned}: whether tuning has finished is not known; this is the best of 3 trials"
    )
    assert main(["show", tuned]) == 0
    assert "3 trials, whether finished is not known" in capsys.readouterr().out


@pytest.mark.parametrize("task", ["best", "show"])
def test_a_row_without_its_newline_is_named(capsys, tmp_path: Path, task: str) -> None:
    """Pasted or cut off: ``no trial yet`` would be wrong."""
    header = (
        "hierarchical_allreduce,hierarchical_allgather,cache_enabled,cycle_time_ms,"
        "tensor_fusion_threshold,score"
    )
    log = tmp_path / "pasted.csv"
    log.write_text(f"{header} \n 0,1,0,5,4,409.135")
    assert main([task, str(log)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err == (
        f"autotune: {log}: no answer: no line of the log can be used; line 2, the last one, is "
        "ignored: it has no newline at its end, so it may be cut off\n"
    )


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


PLACES = [(">/dev/full", "No space left on device"), (">&-", "closed")]
UNPRINTABLE = [
    (arguments, redirection, why, "1" if (number + place) % 2 else "")
    for number, arguments in enumerate(ANSWERS)
    for place, (redirection, why) in enumerate(PLACES)
]
"""Each answer to each place, and each of them with the buffer that Python has and without."""


@pytest.mark.parametrize(("arguments", "redirection", "why", "unbuffered"), UNPRINTABLE)
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


@pytest.mark.timeout(30)
@pytest.mark.parametrize("task", ["best", "show", "timeline", "runs"])
def test_what_may_never_end_is_not_read(capsys, tmp_path: Path, task: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (str(tmp_path / "fifo"), "/dev/null", "/dev/zero"):
        assert main([task, path]) == 1
        assert f"{path}: is not a regular file: expected" in capsys.readouterr().err


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
