"""The commands of each tier. Every one has a time limit; output goes straight to the terminal."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tiers import tensorflow_environment
from tiers.counts import Counts, read_junit
from tiers.needs import devices

Environ = Mapping[str, str]

RESULTS = Path("build/test-results")
MODULE_BUILD = Path("build/editable")
"""Where `make setup` builds."""
BIN = Path(sys.executable).parent
PARALLEL_SIZES = (1, 2, 4)
WITHOUT_MPI_SIZES = (2, 4)
WITHOUT_MPI = tuple(
    f"parallel/test_{name}.py"
    for name in ("init", "collectives", "control_tree", "process_sets", "strangers")
)
"""Those of tests/parallel that also run without MPI where the tier runs with it."""
GPU_SIZES = (2, 4)
FEW = 3
"""Failed tests of so many files of a tier whose tests share the cores are run again alone."""
TENSORFLOW_TRAINING = tuple(
    f"tensorflow/ranks/test_{name}.py" for name in ("fit", "optimizer", "tape")
)
"""Those of tests/tensorflow that train."""
OF_TF_KERAS = "test_optimizer or test_fit and (whole_batch or accumulated or sparse or older)"
"""Of them what goes another way through optimizers of tf-keras than through those of Keras 3."""


def run(
    argv: Sequence[str | Path],
    environ: Environ,
    limit_s: float,
    folder: Path | None = None,
    log: Path | None = None,
) -> int:
    """Run ``argv`` in a session of its own and return its exit code.

    Args:
        argv: Program and arguments.
        environ: Its environment.
        limit_s: How long it may take, in seconds.
        folder: Where it starts; None: here.
        log: Gets its output; None: the terminal does.

    Raises:
        subprocess.TimeoutExpired: It did not end in ``limit_s`` seconds; all of it is killed.
    """
    words = [str(word) for word in argv]
    print("$", " ".join(words), flush=True)
    with log.open("wb") if log else contextlib.nullcontext() as output:
        process = subprocess.Popen(
            words,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the session: the process itself and children that outlived it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(5)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def lint(environ: Environ) -> Counts:
    sources = [p for top in ("csrc", "tests/engine", "release") for p in Path(top).rglob("*.[hc]*")]
    sources = sorted(path for path in sources if path.suffix in (".h", ".cc", ".c"))
    checks: list[list[str | Path]] = [
        [BIN / "ruff", "check", "."],
        [BIN / "ruff", "format", "--check", "."],
        [BIN / "mypy"],
        [BIN / "clang-format", "--dry-run", "-Werror", *sources],
        [BIN / "lint-imports"],
        [sys.executable, "tests/lint/check_includes.py"],
    ]
    codes = [run(check, environ, 300) for check in checks]
    bad = [Path(check[0]).name for check, code in zip(checks, codes, strict=True) if code]
    return Counts(
        passed=codes.count(0), failed=len(bad), note=f"failed: {', '.join(bad)}" if bad else ""
    )


def pytest(
    folder: str,
    environ: Environ,
    limit_s: float,
    *options: str,
    python: str | Path = sys.executable,
    name: str = "",
) -> Counts:
    """Run the tests of tests/``folder``, in one process unless ``options`` say otherwise.

    The results are called ``name``, or as the folder is.
    """
    report = _fresh(name or folder.replace("/", "-"))[0].with_suffix(".xml")
    command = [python, "-m", "pytest", f"tests/{folder}", "-q", f"--junitxml={report}"]
    code = run([*command, *options], environ, limit_s)
    return read_junit([report] if report.exists() else [], code, folder)


def beside_others(
    folder: str, environ: Environ, limit_s: float, many: Sequence[str], *options: str
) -> Counts:
    """Run the tests of tests/``folder`` beside each other; those of FEW files run again alone.

    Whole jobs on busy cores can be too slow for what a test wants of them. One that passes alone
    has passed, and is named in the table: it asks for too much of a busy machine.
    """
    together = pytest(folder, environ, limit_s, *options, *many)
    files = {name.partition("::")[0] for name in together.failures}
    if not files or len(files) > FEW:
        return together
    alone = pytest(folder, environ, limit_s, *options, "--last-failed", name=f"alone-{folder}")
    passed = [name for name in together.failures if name not in alone.failures]
    if not passed or alone.passed < len(passed):
        return together
    names = passed if len(passed) <= FEW else [f"{len(passed)} of {', '.join(sorted(files))}"]
    return replace(
        together,
        passed=together.passed + len(passed),
        failed=together.failed - len(passed),
        failures={name: why for name, why in together.failures.items() if name not in passed},
        note=f"passed only alone: {', '.join(names)}",
    )


def unit(environ: Environ) -> Counts:
    return _on_all_cores("unit", environ)


def simulated(environ: Environ) -> Counts:
    return _on_all_cores("simulated", environ)


def _on_all_cores(folder: str, environ: Environ) -> Counts:
    """Run tests/``folder`` on up to four cores; one that is through takes tests from another."""
    cores = min(4, os.cpu_count() or 1)
    return pytest(folder, environ, 300, "-n", str(cores), "--dist", "worksteal")


def e2e(environ: Environ) -> Counts:
    """Run tests/e2e: the jobs that are measured alone, of the others three at a time.

    Those wait more than they compute.
    """
    alone = pytest("e2e/measured", environ, 300)
    three = ("-n", "3", "--dist", "worksteal")
    return alone + beside_others("e2e", environ, 1200, three, "--ignore=tests/e2e/measured")


def browser(environ: Environ) -> Counts:
    return pytest("browser", environ, 300)


def cluster(environ: Environ) -> Counts:
    """Run tests/cluster, two files at a time."""
    return beside_others("cluster", environ, 600, ("-n", "2", "--dist", "loadfile"))


def chaos(environ: Environ) -> Counts:
    """Run tests/chaos; what came of each fault is printed."""
    seconds = float(environ.get("CHAOS_SECONDS", "300"))
    return pytest("chaos", environ, seconds + 600, "-s")


def gpu(environ: Environ) -> Counts:
    """Run tests/gpu/ranks on 2 GPUs, and on 4 where there are as many; then tests/gpu/jobs."""
    sizes = [size for size in GPU_SIZES if size <= devices()]
    counts = sum((ranks("gpu/ranks", size, environ, 300) for size in sizes), Counts())
    environ = {**environ, "HVD_TEST_RANKS": str(max(sizes))}
    report = _fresh("gpu-jobs")[0].with_suffix(".xml").absolute()
    command = [sys.executable, "-m", "pytest", "tests/gpu/jobs", "-q", f"--junitxml={report}"]
    code = run([*command, "-p", "no:cacheprovider"], environ, 300)
    return counts + read_junit([report] if report.exists() else [], code, "gpu-jobs")


def parallel(environ: Environ) -> Counts:
    """Run tests/parallel on each size, all ranks running the same tests.

    Then a part of it without MPI; with TRANSPORT=tcp all of it is.
    """
    counts = sum((ranks("parallel", size, environ, 600) for size in PARALLEL_SIZES), Counts())
    if environ.get("TRANSPORT") == "tcp":
        return counts
    environ = {**environ, "TRANSPORT": "tcp"}
    parts = (
        ranks("parallel-without-mpi", size, environ, 300, *WITHOUT_MPI)
        for size in WITHOUT_MPI_SIZES
    )
    return sum(parts, counts)


def tensorflow(environ: Environ) -> Counts:
    """Run tests/tensorflow in an environment of its own: on ranks, then whole jobs.

    On 2 ranks everything, with MPI; without it what differs with tf-keras and, on 4 ranks, what
    compares its weights with those of one process.
    """
    python = tensorflow_environment.python()
    environ = tensorflow_environment.environment(environ)
    tcp = {**environ, "TRANSPORT": "tcp"}
    legacy = {**tcp, "TF_USE_LEGACY_KERAS": "1"}
    training = TENSORFLOW_TRAINING
    same, differs = ("-k", "whole_batch"), ("-k", OF_TF_KERAS)
    not_jobs = ("--ignore=tests/tensorflow/ranks", "--ignore=tests/tensorflow/on_torch")
    return sum(
        (
            ranks("tensorflow/ranks", 2, environ, 600, python=python),
            ranks("tensorflow-tf-keras", 2, legacy, 600, *training, options=differs, python=python),
            ranks("tensorflow-training", 4, tcp, 600, *training, options=same, python=python),
            ranks("tensorflow/on_torch", 2, environ, 600, python=python),
            pytest("tensorflow", environ, 1200, *not_jobs, python=python),
        ),
        Counts(),
    )


def ranks(
    folder: str,
    size: int,
    environ: Environ,
    limit_s: float,
    *files: str,
    options: Sequence[str] = (),
    python: str | Path = sys.executable,
) -> Counts:
    """Run tests/``folder``, or ``files``, under mpirun; with TRANSPORT=tcp without MPI."""
    prefix, name = _fresh(f"{folder.replace('/', '-')}-{size}")
    tests = [f"tests/{each}" for each in files or (folder,)]
    command: list[str | Path] = [mpirun(), "-n", str(size), "--bind-to", "none"]
    command += ["--map-by", ":OVERSUBSCRIBE"]
    if environ.get("TRANSPORT") == "tcp":
        command = [sys.executable, "tests/tiers/tcp_ranks.py", "-n", str(size)]
    command += [python, "tests/tiers/rank_pytest.py"]
    try:
        code = run([*command, prefix.absolute(), *tests, "-q", *options], environ, limit_s)
    except subprocess.TimeoutExpired as error:
        return Counts(failed=1, note=f"{name}: no end within {error.timeout:.0f} s")
    return read_junit(sorted(RESULTS.glob(f"{name}-rank*.xml")), code, name)


def mpirun() -> Path:
    """Return the one beside this Python, else the first on PATH."""
    own = BIN / "mpirun"
    return own if own.exists() else Path(shutil.which("mpirun") or own)


def engine(environ: Environ) -> Counts:
    """Build the C++ tests with the library that the module is made of, and run them."""
    build = Path("build/engine-tests")
    options = ["-DHVD_BUILD_TESTS=ON", "-DHVD_BUILD_MODULE=OFF", "-DCMAKE_BUILD_TYPE=Release"]
    options += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}"]
    steps: list[list[str | Path]] = []
    library = ""
    if (MODULE_BUILD / "build.ninja").exists():  # not where the module was built elsewhere
        library = str((MODULE_BUILD / "libautotune_engine.a").absolute())
        steps += [[BIN / "cmake", "--build", MODULE_BUILD, "--target", "autotune_engine"]]
    options += [f"-DHVD_ENGINE_LIBRARY={library}"]
    steps += [[BIN / "cmake", "-S", "csrc", "-B", build, *options]]
    steps += [[BIN / "cmake", "--build", build, "--parallel", "2"]]
    for step in steps:
        if run(step, environ, 900):
            return Counts(failed=1, note="the engine's tests do not build")
    report = _fresh("engine")[0].with_suffix(".xml").absolute()
    ctest = [BIN / "ctest", "--test-dir", build, "--output-on-failure", "--timeout", "120"]
    code = run([*ctest, "--parallel", "2", "--output-junit", report], environ, 300)
    return read_junit([report] if report.exists() else [], code, "engine")


def _fresh(name: str) -> tuple[Path, str]:
    """Return where the results of ``name`` go, with those of an earlier run removed."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for old in RESULTS.glob(f"{name}*.xml"):
        old.unlink()
    return RESULTS / name, name
