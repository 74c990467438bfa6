"""Horovod's names for small tools of launchers: what libraries do with them."""

from __future__ import annotations

import io
import sys
import threading
import time
from pathlib import Path

import pytest

from horovod.runner.common.util import (
    codec,
    env,
    host_hash,
    hosts,
    safe_shell_exec,
    secret,
    timeout,
)


def test_ranks_fill_hosts_one_after_the_other() -> None:
    parsed = hosts.parse_hosts("a:2,b:1,c:4")
    assert hosts.HostInfo.from_string("b") == hosts.HostInfo("b", 1)
    slots = hosts.get_host_assignments(parsed, 3, 4)
    rows = [(s.hostname, s.rank, s.local_rank, s.cross_rank) for s in slots]
    assert rows == [("a", 0, 0, 0), ("a", 1, 1, 0), ("b", 2, 0, 1), ("c", 3, 0, 2)]
    assert [(s.size, s.local_size, s.cross_size) for s in slots] == [
        (4, 2, 3),
        (4, 2, 1),
        (4, 1, 3),
        (4, 1, 3),
    ]
    assert slots[0].to_response_string() == "0,4,0,2,0,3"
    assert len(hosts.get_host_assignments(parsed, 3)) == 3
    with pytest.raises(ValueError, match="have 7 slots: expected at least 8"):
        hosts.get_host_assignments(parsed, 8)


def test_files_of_hosts_become_lists(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb\n")
    assert hosts.parse_host_files(str(file)) == "a:2,b:1"
    assert hosts.parse_hosts_and_slots("a:2,b:1") == (["a", "b"], {"a": 2, "b": 1})


def test_functions_travel_as_text() -> None:
    offset = 3
    text = codec.dumps_base64(lambda x: x + offset)
    assert isinstance(text, str) and codec.loads_base64(text)(4) == 7
    assert isinstance(codec.dumps_base64(1, to_ascii=False), bytes)


def test_digests_belong_to_key_and_message() -> None:
    key = secret.make_secret_key()
    digest = secret.compute_digest(key, b"data")
    assert len(digest) == secret.DIGEST_LENGTH
    assert secret.check_digest(digest, key, b"data")
    assert not secret.check_digest(digest, key, b"date")
    assert not secret.check_digest(digest, secret.make_secret_key(), b"data")


def test_a_timeout_names_what_was_waited_for() -> None:
    fine, over = timeout.Timeout(100, "x"), timeout.Timeout(-1, "{activity} took {timeout}")
    fine.check_time_out_for("a")
    assert 99 < fine.remaining() <= 100 and over.remaining() == 0
    with pytest.raises(timeout.TimeoutException, match="ssh took -1 seconds"):
        over.check_time_out_for("ssh")


def test_the_environment_says_rank_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*env.RANK_VARIABLES, *env.SIZE_VARIABLES, "HOROVOD_RANK", "HOROVOD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert env.get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    assert env.get_env_rank_and_size() == (2, 4)
    assert env.is_exportable("PATH") and not env.is_exportable("BASH_FUNC_ml%%")


def test_one_host_has_one_hash() -> None:
    assert host_hash.host_hash() == host_hash.host_hash() != host_hash.host_hash("salt")


def test_a_command_gives_its_output_and_exit_code() -> None:
    out, err = io.StringIO(), io.StringIO()
    code = safe_shell_exec.execute("echo $WORD; echo no >&2; exit 3", {"WORD": "hi"}, out, err, 1)
    assert (code, out.getvalue(), err.getvalue()) == (3, "[1]hi\n", "[1]no\n")
    assert safe_shell_exec.execute([sys.executable, "-c", "print(5)"], stdout=out) == 0


def test_an_event_ends_a_command_with_its_children() -> None:
    event = threading.Event()
    threading.Timer(0.3, event.set).start()
    begun = time.monotonic()
    code = safe_shell_exec.execute("sleep 50 & sleep 50", stdout=io.StringIO(), events=[event])
    assert code == -15 and time.monotonic() - begun < 20
