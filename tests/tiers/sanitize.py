"""Runs the engine's tests under sanitizers: memory and undefined behaviour, and data races.

    python tests/tiers/sanitize.py                     all three
    python tests/tiers/sanitize.py engine-thread ...   these

    engine-address     tests/engine with AddressSanitizer and UndefinedBehaviorSanitizer
    engine-thread      tests/engine with ThreadSanitizer (the ranks are threads)
    parallel-address   tests/parallel on 2 ranks, the module with both of the first

The first finding ends a test. What is switched off is listed in tests/README.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from run_tiers import test_environment  # noqa: E402
from tiers.commands import BIN, run  # noqa: E402

OPTIONS = {
    # As without it: memory that cannot be had is an error of the engine, by name.
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:allocator_may_return_null=1",
    # Open MPI's memory hooks (libucm) replace functions that the sanitizers replace, too.
    "UCX_MEM_MMAP_HOOK_MODE": "none",
    "OMPI_MCA_memory": "^patcher",
}
# Python and PyTorch never free what lives as long as the process.
OPTIONS_IN_PYTHON = {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}


def main(names: list[str]) -> int:
    """Run what is called ``names`` (all where empty); return the exit code."""
    known = {
        "engine-address": lambda: engine("address,undefined"),
        "engine-thread": lambda: engine("thread"),
        "parallel-address": parallel,
    }
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"no sanitizer run {unknown[0]!r}; there are {', '.join(known)}")
        return 2
    os.chdir(ROOT)
    codes = {name: start() for name, start in known.items() if name in names or not names}
    for name, code in codes.items():
        print(f"{name:<18} {'clean' if code == 0 else f'failed, exit code {code}'}")
    return int(any(codes.values()))


def environment() -> dict[str, str]:
    """Return the tests' environment with the sanitizers' options."""
    return test_environment(os.environ) | OPTIONS


def build(folder: Path, sanitizers: str, *options: str) -> int:
    """Build csrc with ``sanitizers`` in ``folder``; return the exit code."""
    command: list[str | Path] = [BIN / "cmake", "-S", "csrc", "-B", folder, "-G", "Ninja"]
    command += [f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}"]
    command += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", f"-DHVD_SANITIZE={sanitizers}", *options]
    return run(command, environment(), 120) or run(
        [BIN / "cmake", "--build", folder, "--parallel", "2"], environment(), 900
    )


def engine(sanitizers: str) -> int:
    """Build and run tests/engine; return the exit code."""
    folder = Path("build") / f"sanitize-{sanitizers.split(',')[0]}"
    code = build(folder, sanitizers, "-DHVD_BUILD_TESTS=ON", "-DHVD_BUILD_MODULE=OFF")
    ctest = [BIN / "ctest", "--test-dir", folder, "--output-on-failure", "--timeout", "300"]
    return code or run([*ctest, "--parallel", "2"], environment(), 900)


def parallel() -> int:
    """Build the module and run tests/parallel with it; return the exit code."""
    folder = Path("build/sanitize-module")
    pybind11 = _output([sys.executable, "-m", "pybind11", "--cmakedir"])
    code = build(
        folder,
        "address,undefined",
        f"-Dpybind11_DIR={pybind11}",
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    if code:
        return code
    # Loaded before Python allocates anything.
    libraries = [_output(["gcc", f"-print-file-name=lib{name}.so"]) for name in ("asan", "ubsan")]
    variables = {"LD_PRELOAD": ":".join(libraries), "SANITIZED_ENGINE": _module(folder)}
    environ = environment() | OPTIONS_IN_PYTHON
    command: list[str | Path] = [BIN / "mpirun", "-n", "2", "--bind-to", "none"]
    command += ["--map-by", ":OVERSUBSCRIBE", "--mca", "mpi_yield_when_idle", "1"]
    for name, value in variables.items():
        command += ["-x", f"{name}={value}"]
    command += [sys.executable, "tests/tiers/rank_pytest.py", "build/test-results/sanitize"]
    Path("build/test-results").mkdir(parents=True, exist_ok=True)
    return run([*command, "tests/parallel", "-q", "-p", "tiers.sanitized_engine"], environ, 900)


def _module(folder: Path) -> str:
    return str(next(folder.glob("_engine.*.so")).absolute())


def _output(argv: list[str]) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
