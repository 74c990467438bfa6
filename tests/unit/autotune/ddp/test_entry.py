"""The ways in import no torch, give way to others, and are refused in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from autotune.cli.launching import BOOTSTRAP, with_adapter
from autotune.cli.main import main
from autotune.ddp.entry import is_wanted
from autotune.ddp.settings import read_settings
from autotune.errors import AutotuneError


def python(
    code: str, interpreter: str = sys.executable, **environ: str
) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "AUTOTUNE_"))}
    child = with_adapter({**kept, **environ})
    return subprocess.run(
        [interpreter, "-c", code], env=child, capture_output=True, text=True, timeout=60
    )


def test_a_process_that_makes_no_module_imports_no_torch_and_says_nothing() -> None:
    code = "import sys; print([m for m in ('torch', 'numpy', 'horovod') if m in sys.modules])"
    for environ in ({}, {"HOROVOD_AUTOTUNE": "1"}):
        done = python(code, **environ)
        assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_the_sitecustomize_that_would_have_been_found_is_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.own = __name__, __file__")
    done = python("import sys; print(sys.own)", PYTHONPATH=str(tmp_path), HOROVOD_AUTOTUNE="1")
    assert done.stdout == f"{('sitecustomize', str(tmp_path / 'sitecustomize.py'))}\n", done.stderr


def test_an_environment_without_the_package_is_one_sentence(tmp_path: Path) -> None:
    venv.create(tmp_path)
    there = {"interpreter": str(tmp_path / "bin/python"), "HOROVOD_AUTOTUNE": "1"}
    assert python("print('trained')", **there, RANK="1").stderr == ""
    done = python("print('trained')", **there, RANK="0")
    assert done.returncode == 0 and done.stdout == "trained\n"
    assert done.stderr.count("\n") == 1 and "not tuned" in done.stderr


def test_the_module_is_seen_when_it_is_imported_and_keeps_its_source(tmp_path: Path) -> None:
    package = tmp_path / "torch" / "nn" / "parallel"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")
    (package / "distributed.py").write_text(
        "class DistributedDataParallel:\n    def __init__(self):\n        self.made = True\n"
    )
    code = (
        "import inspect; from torch.nn.parallel.distributed import DistributedDataParallel as D; "
        "from autotune.ddp import entry; seen = []; entry._entry.wrapped = seen.append; "
        "ddp = D(); assert seen == [ddp] and ddp.made; print(inspect.getsource(D).count('made'))"
    )
    done = python(code, PYTHONPATH=str(tmp_path), HOROVOD_AUTOTUNE="1")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_rank_0_says_that_it_made_no_module_and_what_it_starts_does_not(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "distributed.py").write_text("")
    inner = "import torch.distributed"
    outer = f"{inner}, subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    for rank, lines in (("0", 1), ("1", 0)):
        done = python(outer, PYTHONPATH=str(tmp_path), HOROVOD_AUTOTUNE="1", RANK=rank)
        assert done.returncode == 0 and done.stderr.count("\n") == lines, done.stderr
        assert ("no DistributedDataParallel" in done.stderr) == bool(lines)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"HOROVOD_AUTOTUNE": "0"}, False),
        ({"HOROVOD_AUTOTUNE": "1"}, True),
        ({"HOROVOD_AUTOTUNE_REPLAY": "log.csv"}, True),
        ({"AUTOTUNE_DDP_BUCKET_CAP_BYTES": "5"}, True),
    ],
)
def test_what_is_wanted_stands_in_the_environment(environ: dict, expected: bool) -> None:
    assert is_wanted(environ) is expected
    assert read_settings(environ).is_wanted is expected


def test_variables_are_read_strictly() -> None:
    found = read_settings(
        {
            "HOROVOD_AUTOTUNE": "1",
            "AUTOTUNE_DDP_BUCKET_CAP_BYTES": "99",
            "HOROVOD_AUTOTUNE_SEED": "3",
        }
    )
    assert found.is_on and found.fixed == {"bucket_cap_bytes": 99} and found.tuner.seed == 3
    for variable in ("HOROVOD_AUTOTUNE_BUDGET", "AUTOTUNE_DDP_GRADIENT_AS_BUCKET_VIEW"):
        with pytest.raises(AutotuneError, match=variable):
            read_settings({variable: "often"})


@pytest.mark.parametrize(
    "arguments", [["run"], ["run", "--log", "x.csv", "--"], ["run", "log.db"], ["run", "torchrun"]]
)
def test_run_without_a_command_says_what_is_expected(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert "autotune run [options] -- COMMAND" in said and "autotune runs" in said


def test_run_hands_options_and_the_adapter_to_the_command(tmp_path: Path) -> None:
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    options = "--log log.csv --seed 7 --db all/ --budget 0.1 --max-trials 9".split()
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "run", *options, "--", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["PYTHONPATH"].split(os.pathsep)[0] == str(BOOTSTRAP)
    known = {k: v for k, v in found.items() if k.startswith("HOROVOD_AUTOTUNE")}
    assert known == {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(tmp_path / "log.csv"),
        "HOROVOD_AUTOTUNE_DB": f"{tmp_path / 'all'}/",
        "HOROVOD_AUTOTUNE_SEED": "7",
        "HOROVOD_AUTOTUNE_BUDGET": "0.1",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "9",
    }


def test_a_command_that_is_not_there_is_127() -> None:
    assert main(["run", "--", "no-such-command-anywhere"]) == 127
