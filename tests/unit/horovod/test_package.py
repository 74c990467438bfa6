"""What the package is called, what it refuses, and what it does not import."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest
from packaging.version import Version

import horovod
from horovod.common import exceptions, util
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.packages import is_installed


def test_the_version_is_at_least_that_of_the_api() -> None:
    assert Version(horovod.__version__) >= Version("0.28.1")


def test_the_original_in_the_same_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "0.28.1")
    with pytest.raises(ImportError, match=r"original horovod 0\.28\.1.*pip uninstall horovod"):
        horovod._refuse_the_original()


@pytest.mark.parametrize("name", ["mxnet", "spark", "spark.torch", "ray"])
def test_other_front_ends_say_that_they_are_not_there(name: str) -> None:
    code = f"import horovod.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "provides Horovod's PyTorch API only" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["Keras", "TensorFlow"])
def test_a_framework_that_is_not_installed_is_one_sentence(name: str) -> None:
    module = name.lower()
    code = f"import sys; sys.modules[{module!r}] = None; import horovod.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"needs {name}, which is not installed" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["Keras", "TensorFlow"])
def test_a_folder_of_a_frameworks_name_is_not_the_framework(name: str, tmp_path: Path) -> None:
    module = name.lower()
    if is_installed(module):
        pytest.skip(f"{name} is installed here, and found before a folder")
    (tmp_path / module).mkdir()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import horovod.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"needs {name}, which is not installed" in done.stderr.splitlines()[-1]


def test_a_folder_is_no_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(util, "EXTENSIONS", ("only_a_folder", "horovod"))
    assert not util.extension_available("only_a_folder")
    assert not util.extension_available("packaging")
    assert util.extension_available("horovod")


def test_importing_the_runtime_starts_nothing() -> None:
    code = (
        "import sys, horovod, horovod.tuning.autotuning, horovod.common.process_sets\n"
        "print(sorted({'torch', 'mpi4py.MPI', 'skopt', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_errors_are_what_scripts_catch() -> None:
    assert issubclass(HorovodInternalError, RuntimeError)
    assert HostsUpdatedInterrupt(skip_sync=True).skip_sync
    assert exceptions.__doc__ is not None


@pytest.mark.parametrize(("items", "parts"), [(10, 3), (3, 3), (2, 4), (0, 2)])
def test_split_list_keeps_order_and_balance(items: int, parts: int) -> None:
    split = util.split_list(list(range(items)), parts)
    assert len(split) == parts
    assert list(chain.from_iterable(split)) == list(range(items))
    assert max(map(len, split)) - min(map(len, split)) <= 1
    with pytest.raises(ValueError, match="at least 1 part"):
        util.split_list([], 0)


def test_powers_of_two() -> None:
    assert [n for n in range(10) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8]
