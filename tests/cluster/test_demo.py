"""The demo's second act in a short form; where hosts are refused; when it is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.trial import CommParams
from cluster.hosts import NEW_USER, namespace_words

ROOT = Path(__file__).resolve().parents[2]
ACT = [sys.executable, str(ROOT / "experiments/digits/second_act.py"), "--output"]
NO_NAMESPACES = "echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set -all"
HOSTS = """
from autotune.trial import CommParams
from cluster.hosts import TwoHosts
with TwoHosts(rate_mbit=100) as hosts:
    hosts.check()
    print(*(len(hosts.processes(host)) for host in hosts.hosts), hosts.places((1, 2)))
"""


def namespaces() -> str:
    return subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


@pytest.mark.timeout(300)
def test_the_second_act_tunes_a_job_on_two_hosts_and_shows_the_answer(tmp_path: Path) -> None:
    out = play(tmp_path, "--epochs", "3", "--seconds", "1")
    commands = [line.split()[1] for line in out.splitlines() if line.startswith("$ ")]
    assert commands[:4] == ["horovodrun", "HOROVOD_AUTOTUNE=1", "autotune", "autotune"]
    assert "horovodrun -np 2 -H host-a:1,host-b:1 python" in out
    assert "2 host(s); rank 0 on host-a" in out
    assert (tmp_path / "autotune.csv").read_text().count("\n") > 1


@pytest.mark.timeout(300)
def test_the_second_act_times_an_answer_and_the_default_in_turns(tmp_path: Path) -> None:
    answer = tmp_path / "best.json"
    setting = {**CommParams().as_dict(), "cycle_time_ms": 3.0}
    answer.write_text(json.dumps(setting))
    out = play(tmp_path, "--answer", answer)
    assert "2 hosts x 1 ranks, 200 Mbit/s" in out
    assert "verdict: 1 pairs are too few" in out
    for name, cycle_time_ms in (("default", 1.0), ("tuned", 3.0)):
        stats = json.loads((tmp_path / f"{name}-0.json").read_text())
        assert [rank["cycle_time_ms"] for rank in stats["settings"]] == [cycle_time_ms] * 2


def play(output: Path, *options: str | Path) -> str:
    """Run the second act in a short form and return what it prints."""
    words = [*ACT, output, "--ranks", "1", "--timed-epochs", "2", "--pairs", "1", *options]
    act = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert act.returncode == 0, act.stdout + act.stderr
    return act.stdout


def test_hosts_can_be_made_in_a_user_namespace_alone() -> None:
    words = [*NEW_USER, "sh", "-c", 'mount -t tmpfs tmpfs /run && exec "$@"', "sh"]
    words += [sys.executable, "-c", HOSTS]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environ)
    assert done.stdout == "0 0 host-a:1,host-b:2\n", done.stderr
    assert namespace_words() == []  # this process is root


def test_where_namespaces_are_refused_the_act_says_so_and_the_demo_goes_on(tmp_path: Path) -> None:
    words = ["unshare", "--user", "--map-root-user", "sh", "-c", f'{NO_NAMESPACES} "$@"', "sh"]
    act = subprocess.run([*words, *ACT, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert act.returncode == 0, act.stderr
    (line,) = act.stdout.strip().splitlines()
    assert line.startswith("=== 2. Two hosts: left out, network namespaces are refused (unshare: ")
    assert line.endswith("start it with --privileged.")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_act_that_is_ended_removes_its_hosts(tmp_path: Path, number: int) -> None:
    act = subprocess.Popen([*ACT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert act.stdout is not None
    for line in act.stdout:
        if line.startswith("$ horovodrun"):
            break
    stem = f"hvd-{act.pid}-0-"
    assert stem in namespaces()
    time.sleep(1)  # mpirun is on its way
    act.send_signal(number)
    act.communicate(timeout=40)
    assert act.returncode == 128 + number
    assert stem not in namespaces()
    assert not list(Path(os.environ.get("TMPDIR", "/tmp")).glob(f"{stem}*"))
