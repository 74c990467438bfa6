"""The service leaves the processors to the ranks, and knows how many of them there are."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from autotune.service.priority import NICE, available_cores


def run(code: str) -> str:
    words = [sys.executable, "-c", "from autotune.service.priority import *\n" + code]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout


def test_giving_way_spares_the_threads_that_are_named_and_nobody_they_start_after_it():
    code = """
import os, threading
event, values = threading.Event(), {}
def note(name):
    event.wait()
    values[name] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
threads = [threading.Thread(target=note, args=[name]) for name in ("spared", "other")]
for thread in threads: thread.start()
give_way(besides=threads[:1])
threads.append(threading.Thread(target=note, args=["later"]))
threads[-1].start()
event.set()
for thread in threads: thread.join()
print(values["spared"], values["other"], values["later"])
"""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    low = min(19, own + NICE)
    assert run(code).split() == [str(own), str(low), str(low)]


def test_the_service_runs_on_the_cores_of_all_ranks_of_its_host_and_no_others():
    every = os.sched_getaffinity(0)
    code = f"""
import os
os.sched_setaffinity(0, [{min(every)}])
become_ordinary()
print(*os.sched_getaffinity(0), available_cores() <= 1)
become_ordinary({sorted(every)})
print(*sorted(os.sched_getaffinity(0)))
"""
    bound, free = run(code).splitlines()
    assert bound == f"{min(every)} True"
    assert free == " ".join(map(str, sorted(every)))


def test_a_real_time_priority_is_left():
    code = """
import os
try:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
except PermissionError:
    print("not permitted")
else:
    become_ordinary()
    print(os.sched_getscheduler(0) == os.SCHED_OTHER)
"""
    said = run(code).strip()
    if said == "not permitted":
        pytest.skip("this user may not have a real-time priority")
    assert said == "True"


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1, V2 = "4:cpu,cpuacct:/job", "0::/pod/job"
HALF = {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    "group, files, cores",
    [
        (V2, {"pod/job/cpu.max": "50000 100000"}, 0.5),
        (V2, {"pod/job/cpu.max": "max 100000", "pod/cpu.max": "25000 100000"}, 0.25),
        (V2, {"pod/job/cpu.max": "max 100000"}, None),
        (V2, {"cpu.max": "50000 100000"}, 0.5),  # a container that sees its own folder only
        (V1, {f"cpu,cpuacct/job/{name}": text for name, text in HALF.items()}, 0.5),
        (V1, {f"cpu,cpuacct/{name}": text for name, text in HALF.items()}, 0.5),
        (V1, {"cpu,cpuacct/job/cpu.cfs_quota_us": "-1"}, None),
        ("5:memory:/job", {f"memory/job/{name}": text for name, text in HALF.items()}, None),
        (V2, {"pod/job/cpu.max": "900000000 100000"}, None),
        (V2, {"pod/job/cpu.max": ""}, None),
    ],
)
def test_cores_are_what_the_control_groups_allow_and_no_more_than_there_are(
    tmp_path, group, files, cores
):
    write(tmp_path, {"proc/self/cgroup": f"5:memory:/\n{group}\n"})
    write(tmp_path / "sys/fs/cgroup", files)
    assert available_cores(tmp_path) == (cores or len(os.sched_getaffinity(0)))


def test_without_control_groups_cores_are_those_of_the_affinity(tmp_path):
    assert available_cores(tmp_path) == len(os.sched_getaffinity(0))
