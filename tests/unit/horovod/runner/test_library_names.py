"""Modules and names of Horovod's launcher that libraries import, and what those do here."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from horovod.common import launched
from horovod.common.tcp_world import MeetingError, TcpWorld, meet
from horovod.runner import _HorovodArgs, gloo_run, js_run
from horovod.runner.arguments import option_words, run_settings
from horovod.runner.common.service.task_service import BasicTaskService
from horovod.runner.common.util import config_parser, settings, timeout, tiny_shell_exec
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import (
    RendezvousHandler,
    RendezvousHTTPServer,
    RendezvousServer,
)
from horovod.runner.launch import make_job, parse_options
from horovod.runner.util import network

LIMIT_S = 20.0

MODULES = {
    "common.service": [],
    "common.service.compute_service": ["ComputeClient", "ComputeService"],
    "common.service.driver_service": ["BasicDriverClient", "BasicDriverService"],
    "common.service.task_service": ["BasicTaskClient", "BasicTaskService"],
    "common.util.network": ["AckResponse", "BasicClient", "BasicService"],
    "driver.driver_service": ["HorovodRunDriverService", "get_common_interfaces"],
    "gloo_run": ["gloo_run_elastic", "launch_gloo"],
    "http.http_client": ["put_data_into_kvstore", "read_data_from_kvstore"],
    "http.http_server": ["KVStoreServer"],
    "js_run": ["generate_jsrun_rankfile", "js_run"],
    "task.task_service": ["HorovodRunTaskClient", "HorovodRunTaskService"],
}
"""Names of horovod.runner that say at their use that they are not here."""


@pytest.mark.parametrize("name", MODULES)
def test_what_is_not_here_says_so_at_its_use(name: str) -> None:
    module = importlib.import_module(f"horovod.runner.{name}")
    for each in MODULES[name]:
        with pytest.raises(NotImplementedError, match=rf"{name}\.{each} is not available in hvd"):
            getattr(module, each)(1, key=b"")
    assert not hasattr(module, "no_such_name")


def test_a_class_that_is_not_here_can_be_a_base() -> None:
    class Service(BasicTaskService):  # type: ignore[misc]
        pass

    with pytest.raises(NotImplementedError, match="BasicTaskService is not available"):
        Service("name", 0)


def test_no_such_module_loads_torch_or_mpi() -> None:
    names = [
        f"horovod.runner.{name}" for name in (*MODULES, "arguments", "mpi_run", "util.network")
    ]
    code = f"import sys, {', '.join(names)}; print({{'torch', 'mpi4py.MPI'}} & set(sys.modules))"
    words = [sys.executable, "-c", code]
    found = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "set()\n"


def meet_all(size: int, port: int) -> list[list[int]]:
    """Return what each of ``size`` ranks learns from all."""
    results: dict[int, list[int]] = {}

    def be(rank: int) -> None:
        world: TcpWorld = meet(rank, size, "127.0.0.1", port, "", LIMIT_S)
        results[rank] = world.allgather(10 * rank)
        world.close()

    ranks = [threading.Thread(target=be, args=(rank,)) for rank in range(size)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(LIMIT_S)
    return [results[rank] for rank in range(size)]


def test_ranks_of_another_launcher_meet_plan_after_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_SECRET_KEY", raising=False)
    server = RendezvousServer(verbose=1)
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        server.init([])
    port = server.start()
    with pytest.raises(ConnectionRefusedError):  # a rank that comes too early tries again
        socket.create_connection(("127.0.0.1", port), LIMIT_S)
    for size in (3, 2):
        server.init(get_host_assignments(parse_hosts("a:2,b:1"), size))
        assert meet_all(size, port) == [[10 * rank for rank in range(size)]] * size
    with pytest.raises(MeetingError, match="expected 2"):
        meet(0, 5, "127.0.0.1", port, "", LIMIT_S)
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), LIMIT_S)
    server.stop()


def test_the_meeting_is_proven_by_the_launchers_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_SECRET_KEY", "a secret of sixteen characters")
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts("a:1"), 1))
    with pytest.raises(MeetingError, match="does not have this job's key"):
        meet(0, 1, "127.0.0.1", port, "", LIMIT_S)
    meet(0, 1, "127.0.0.1", port, os.environ["HOROVOD_SECRET_KEY"], LIMIT_S).close()
    server.stop()


def test_a_library_may_choose_the_port_and_wait_for_the_end() -> None:
    server, port = network.find_port(lambda addr: RendezvousHTTPServer(addr, RendezvousHandler, 1))
    waiting = threading.Thread(target=server.serve_forever, daemon=True)
    waiting.start()
    with pytest.raises(OSError), socket.socket() as other:  # it is ours before ranks meet there
        other.bind(("", port))
    server.init(get_host_assignments(parse_hosts("a:2"), 2))
    assert meet_all(2, port) == [[0, 10]] * 2
    server.shutdown()
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()
    server.server_close()


def test_a_server_of_requests_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="Handler would handle requests over HTTP"):
        RendezvousServer().start(type("Handler", (RendezvousHandler,), {}))


def test_variables_of_a_slot_are_what_a_rank_reads() -> None:
    slot = get_host_assignments(parse_hosts("a:1,b:2"), 3)[2]
    everyone = gloo_run.create_run_env_vars("10.0.0.7", ["eth0"], 4321)
    environ = {**everyone, **gloo_run.create_slot_env_vars(slot)}
    found = launched.find(environ, has_mpi=True)
    assert (found.launcher, found.rank, found.size) == (launched.Launcher.HOROVODRUN, 2, 3)
    assert found.place is not None and (found.place.host, found.place.port) == ("10.0.0.7", 4321)
    assert environ["HOROVOD_HOSTNAME"] == "b" and environ["HOROVOD_LOCAL_RANK"] == "1"
    assert environ["HOROVOD_GLOO_IFACE"] == "eth0"
    assert "HOROVOD_GLOO_IFACE" not in gloo_run.create_run_env_vars("10.0.0.7", [], 4321)
    with pytest.raises(NotImplementedError, match="fixed size"):
        gloo_run.create_run_env_vars("10.0.0.7", [], 4321, elastic=True)


def test_attributes_become_the_command_line(tmp_path: Path) -> None:
    job = _HorovodArgs()
    job.num_proc, job.hosts, job.nics = 4, "a:2,b:2", {"lo", "eth9"}
    job.use_gloo, job.use_mpi, job.verbose, job.ssh_port = True, False, 2, 12345
    job.output_filename, job.fusion_threshold_mb = str(tmp_path / "out"), 8
    assert option_words(job) == [
        "--num-proc=4",
        "--hosts=a:2,b:2",
        "--network-interfaces=eth9,lo",
        "--ssh-port=12345",
        f"--output-filename={tmp_path / 'out'}",
        "--verbose",
        "--gloo",
    ]
    job.nics, job.cooldown_range, job.novelty = None, (1, 2), 3
    with pytest.warns(UserWarning, match="novelty is ignored"):
        words = option_words(job)
    assert words[-3:] == ["--blacklist-cooldown-range", "1", "2"]
    made = make_job(parse_options([*words, "python", "-c", "pass"]))
    assert (made.size, made.hosts, made.ssh_port) == (4, [("a", 2), ("b", 2)], 12345)
    assert made.command == ["python", "-c", "pass"]


def test_attributes_become_variables() -> None:
    job = _HorovodArgs()
    assert config_parser.set_env_from_args({"A": "b"}, job) == {"A": "b"}
    job.fusion_threshold_mb, job.hierarchical_allreduce, job.no_stall_check = 8, False, True
    job.log_with_timestamp, job.cycle_time_ms, job.autotune = True, 2.5, True
    assert config_parser.set_env_from_args({}, job) == {
        config_parser.HOROVOD_FUSION_THRESHOLD: "8388608",
        config_parser.HOROVOD_CYCLE_TIME: "2.5",
        config_parser.HOROVOD_HIERARCHICAL_ALLREDUCE: "0",
        config_parser.HOROVOD_AUTOTUNE: "1",
        config_parser.HOROVOD_STALL_CHECK_DISABLE: "1",
        config_parser.HOROVOD_LOG_HIDE_TIME: "0",
    }
    job.fusion_threshold_mb = -1
    with pytest.raises(ValueError, match="fusion-threshold-mb"):
        config_parser.validate_config_args(job)


def test_sections_of_a_config_file_become_attributes() -> None:
    job = _HorovodArgs()
    content: dict[str, Any] = {
        "controller": "gloo",
        "params": {"fusion_threshold_mb": 32, "cycle_time_ms": 10},
        "autotune": {"enabled": True, "log_file": "log.csv"},
        "stall_check": {"enabled": False},
        "logging": None,
    }
    config_parser.set_args_from_config(job, content, {"cycle_time_ms"})
    assert (job.use_gloo, job.fusion_threshold_mb, job.cycle_time_ms) == (True, 32, None)
    assert (job.autotune, job.autotune_log_file, job.no_stall_check) == (True, "log.csv", True)
    with pytest.raises(ValueError, match="expected gloo or mpi, got 'jsrun'"):
        config_parser.set_args_from_config(job, {"controller": "jsrun"}, ())


def test_settings_hold_what_they_are_given() -> None:
    made = settings.Settings(hosts="a:2", num_proc=2, verbose=2, nics={"eth0"})
    assert isinstance(made, settings.BaseSettings)
    assert (made.hosts, made.num_proc, made.verbose, made.nics) == ("a:2", 2, 2, {"eth0"})
    assert (made.elastic, made.ssh_port, made.prefix_output_with_timestamp) == (False, None, False)
    with pytest.raises(TypeError):
        settings.Settings(no_such=1)
    made.elastic = True
    with pytest.raises(NotImplementedError, match="fixed size"):
        run_settings(made, None, {}, ["x"], way="use_gloo")


def test_settings_say_how_long_ranks_have_to_start() -> None:
    made = settings.Settings(start_timeout=timeout.Timeout(30, "{activity}"), num_proc=2)
    with pytest.raises(ValueError, match="there is no command to start"):
        run_settings(made, None, os.environ, [], way="use_gloo")


def test_the_output_of_a_command_is_whole() -> None:
    assert tiny_shell_exec.execute("echo $WORD; exit 3", {"WORD": "hi"}) == ("hi\n", 3)
    assert tiny_shell_exec.execute(["no-such-program"]) is None


def test_this_host_is_known_by_its_addresses() -> None:
    assert "127.0.0.1" in network.get_local_host_addresses()
    assert "lo" in network.get_local_intfs() and network.get_local_intfs("no-such") == set()
    assert network.resolve_host_address("127.0.0.1") == "127.0.0.1"
    assert network.resolve_host_address("no-such-host.invalid") is None
    names = ["127.0.0.1", "no-such-host.invalid", "192.0.2.1"]
    assert network.filter_local_addresses(names) == names[1:]
    assert network.get_driver_ip(["lo"]) == "127.0.0.1"
    with pytest.raises(RuntimeError, match="no-such has no IPv4 address"):
        network.get_driver_ip(["no-such"])


def test_no_jsrun_starts_ranks() -> None:
    assert not js_run.is_jsrun_installed()
