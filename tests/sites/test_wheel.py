"""The binary wheel and the source archive hold what they should, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from sites.sites import ROOT, build_wheelhouse, must, site_environment

pytestmark = pytest.mark.timeout(1800)  # the first test builds the wheel

OLD_SYSTEM = """
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>

void* dlsym(void* handle, const char* name) { (void)handle, (void)name; return NULL; }
extern int pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t*, clockid_t,
                                  const struct timespec*);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int is_done;

static void* change(void* nothing) {
  pthread_mutex_lock(&mutex);
  is_done = 1;
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&mutex);
  return nothing;
}

int main(void) {
  struct timespec end, now;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_nsec += 50000000;
  if (end.tv_nsec >= 1000000000) end.tv_sec++, end.tv_nsec -= 1000000000;
  pthread_mutex_lock(&mutex);
  int code;
  while ((code = pthread_cond_clockwait(&changed, &mutex, CLOCK_MONOTONIC, &end)) == 0) {}
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int is_late = now.tv_sec > end.tv_sec ||
                      (now.tv_sec == end.tv_sec && now.tv_nsec >= end.tv_nsec);
  printf("%d %d ", code == ETIMEDOUT, is_late);
  end.tv_sec += 60;
  pthread_t thread;
  pthread_create(&thread, NULL, change, NULL);
  while (!is_done && code != 0) {
    code = pthread_cond_clockwait(&changed, &mutex, CLOCK_MONOTONIC, &end);
  }
  printf("%d\\n", code);
  return 0;
}
"""


def test_the_wheel_is_portable_and_holds_an_engine_and_tensorflows_operations(top: Path) -> None:
    (wheel,) = build_wheelhouse(top / "wheelhouse").glob("hvd_autotune-*.whl")
    assert wheel.name.endswith("-manylinux_2_28_x86_64.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    libraries = sorted(Path(name).name.split(".")[0] for name in names if ".so" in name)
    assert libraries == ["_engine", "libautotune_nccl_tuner", "libhorovod_tensorflow"]
    folders = {name.split("/")[0] for name in names}
    assert {f for f in folders if not f.endswith(".dist-info")} == {"autotune", "horovod"}


def test_waits_end_in_time_on_a_system_whose_glibc_lacks_the_call(tmp_path: Path) -> None:
    source, program = tmp_path / "old.c", tmp_path / "old"
    source.write_text(OLD_SYSTEM)
    words = ["cc", "-O2", "-pthread", source, ROOT / "release/glibc_additions.c", "-o", program]
    must([*words, "-D_GNU_SOURCE"], site_environment())
    answer = subprocess.run([program], capture_output=True, text=True, timeout=30)
    assert answer.stdout == "1 1 0\n"


def test_the_source_archive_is_what_git_knows_less_results(tmp_path: Path) -> None:
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    known = set(listed.stdout.splitlines())
    assert held - known == {"PKG-INFO"}
    left_out = {name for name in known - held if (ROOT / name).exists()}
    assert left_out
    assert all(name.startswith("experiments/") for name in left_out)
    assert {Path(name).suffix for name in left_out} <= {".csv", ".gz", ".json", ".svg"}
