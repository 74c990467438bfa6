"""What is tuned by the user's word only: in force where it is said, and in no other job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import distributed as dist  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from autotune.cli.formats import render  # noqa: E402
from autotune.ddp import torch_private as private  # noqa: E402
from autotune.ddp.adapter import Adapter  # noqa: E402
from autotune.ddp.meeting import Arrival, Verdict  # noqa: E402
from autotune.ddp.settings import read_settings  # noqa: E402
from autotune.result import Result, read_result  # noqa: E402
from autotune.service import protocol  # noqa: E402
from autotune.storage.reader import read_log  # noqa: E402
from autotune.tables.ddp import DdpParams  # noqa: E402
from autotune.tables.further import FURTHER, extended  # noqa: E402
from e2e.commands import Commands  # noqa: E402
from e2e.ddp_jobs import HERE, SHORT, TUNED, TWO_RANKS, lines, train  # noqa: E402

EXPLORE = "HOROVOD_AUTOTUNE_EXPLORE"
IN_FORCE = (*TWO_RANKS, HERE / "in_force.py")

pytestmark = pytest.mark.timeout(150)


# ---- jobs of two ranks ---------------------------------------------------------------------------


def test_plain_gradients_are_never_touched_however_often_they_were_compressed(
    commands: Commands,
) -> None:
    done = commands.run(*TWO_RANKS, HERE / "compressed.py", limit_s=90)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for name, (swaps, plain, compressed, worst, ranks_are_equal) in found.items():
        assert swaps >= 28 and plain and compressed and ranks_are_equal, name
        assert worst < 2**-6, name
    assert found["fp16"][3] < found["bf16"][3]


def test_what_a_tuned_job_has_in_force_at_the_end_is_its_logs_answer(commands: Commands) -> None:
    words = ("autotune", "run", "--log", "log.csv", "--explore", "bf16", "--", *IN_FORCE, "40")
    done = commands.run(*words, limit_s=90, **TUNED)
    assert done.returncode == 0, done.stderr[-3000:]
    log = str(commands.folder / "log.csv")
    values = [trial.params.as_dict()["bf16_gradients"] for trial in read_log(log).trials]
    assert set(values) == {False, True} and values[0] is False, done.stderr
    answer = read_result(log)
    assert answer.finished
    said = json.loads(done.stdout)
    assert said["is_bf16"] is answer.params.as_dict()["bf16_gradients"]
    assert said["losses"][1] < said["losses"][0] and said["ranks_are_equal"]


def test_a_replayed_log_puts_it_in_force(commands: Commands) -> None:
    params = extended(DdpParams, ["bf16"]).from_dict({"bf16_gradients": True})
    (commands.folder / "saved.json").write_text(render(Result(params=params), "json"))
    done = commands.run("autotune", "replay", "saved.json", "--", *IN_FORCE, "20", limit_s=90)
    assert done.returncode == 0 and "replays" in done.stderr, done.stderr[-3000:]
    said = json.loads(done.stdout)
    assert said["is_bf16"] and said["ranks_are_equal"] and said["losses"][1] < said["losses"][0]


def test_a_script_with_a_hook_of_its_own_is_told_and_trains_as_ever(commands: Commands) -> None:
    untuned = train(commands, *SHORT, peculiar="fp16_hook")
    explore = {EXPLORE: "bf16"}
    done = train(commands, *SHORT, log="log.csv", peculiar="fp16_hook", **TUNED, **explore)
    assert done.stdout == untuned.stdout
    said = [line for line in lines(done) if "bf16_gradients is not explored" in line]
    assert len(said) == 1 and "communication hook of its own (fp16_compress_hook)" in said[0]


# ---- one process ---------------------------------------------------------------------------------


@pytest.fixture
def alone() -> Iterator[None]:
    """A job of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrapped(module: torch.nn.Module | None = None, **options: Any) -> Any:
    return DistributedDataParallel(module or torch.nn.Linear(2, 2), **options)


def with_every(words: list[str]) -> DdpParams:
    return extended(DdpParams, words).from_dict({FURTHER[word].name: True for word in words})


@pytest.mark.usefixtures("alone")
def test_what_a_module_refuses_is_known() -> None:
    assert private.refusals(wrapped()) == {}
    assert private.refusals(wrapped(torch.nn.Linear(2, 2, dtype=torch.bfloat16))) == {}
    hooked, builtin = wrapped(), wrapped()
    hooked.register_comm_hook(None, default_hooks.allreduce_hook)
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    assert "of its own (allreduce_hook)" in private.refusals(hooked)["bf16"]
    assert "of its own (" in private.refusals(builtin)["fp16"]
    for module, word in (
        (torch.nn.Embedding(4, 2, sparse=True), "sparse"),
        (torch.nn.Linear(2, 2, dtype=torch.complex64), "complex"),
    ):
        refused = private.refusals(wrapped(module))
        assert set(refused) == {"fp16", "bf16"} and word in refused["fp16"]
    static, finding = wrapped(static_graph=True), wrapped(find_unused_parameters=True)
    assert "static_graph=True" in private.refusals(static)["static_graph"]
    assert "find_unused_parameters" in private.refusals(finding)["static_graph"]


@pytest.mark.usefixtures("alone")
def test_what_is_ours_is_not_taken_for_the_scripts() -> None:
    ddp = wrapped()
    for is_on in (True, False, True, True, False):
        params = with_every(["bf16", "static_graph"]) if is_on else DdpParams()
        private.make_buckets(ddp, params, is_timed=False)
        ddp(torch.ones(1, 2)).sum().backward()
        assert ddp.static_graph is is_on
        assert private.refusals(ddp) == {} and private.untunable(ddp) is None
        assert ddp._comm_hooks == [] and private._builtin_hook_name(ddp) == ""
    ddp.register_comm_hook(None, default_hooks.allreduce_hook)  # the reducer has none of ours
    private.make_buckets(ddp, with_every(["bf16"]), is_timed=False)
    assert "of its own" in private.refusals(ddp)["bf16"]


@pytest.mark.usefixtures("alone")
def test_what_the_script_has_stays_whatever_is_put_in_force() -> None:
    ddp = wrapped(static_graph=True)
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    for params in (with_every(["fp16", "static_graph"]), DdpParams()):
        private.make_buckets(ddp, params, is_timed=False)
        assert ddp.static_graph and private._builtin_hook_name(ddp)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("failures", [1, 2])
def test_buckets_that_cannot_be_made_leave_a_module_that_trains(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The first time it is tried again; the second time the buckets are those of before."""
    ddp = wrapped()
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    helper, left = private.DdpClass._ddp_init_helper, [failures]

    def fails(self: object, *arguments: object) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise MemoryError("out of memory")
        helper(self, *arguments)

    monkeypatch.setattr(private.DdpClass, "_ddp_init_helper", fails)
    wanted, before = DdpParams(bucket_cap_bytes=4096), private.setting_of(ddp)
    if failures == 1:
        private.make_buckets(ddp, wanted, is_timed=False, instead=before)
    else:
        with pytest.raises(MemoryError):
            private.make_buckets(ddp, wanted, is_timed=False, instead=before)
    assert private.setting_of(ddp) == (wanted if failures == 1 else before)
    assert private._builtin_hook_name(ddp)
    ddp(torch.ones(1, 2)).sum().backward()
    assert all(one.grad is not None for one in ddp.parameters())


@pytest.mark.usefixtures("alone")
def test_backends_are_asked_what_they_can_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ddp = wrapped()
    assert private.unsummable(ddp, "fp16") == "" == private.unsummable(ddp, "bf16")
    monkeypatch.setitem(private._COMPRESSION, "bf16", (torch.int16, None))
    assert "gloo cannot add up torch.int16" in private.unsummable(ddp, "bf16")
    torch_groups = dist.distributed_c10d
    for config, nccl, word, why in (
        ("cpu:mpi", None, "fp16", "'mpi'"),
        ("cpu:nccl", (2, 9, 6), "bf16", "this NCCL"),
        ("cpu:nccl", (2, 9, 6), "fp16", ""),
        ("cpu:nccl", (2, 10, 3), "bf16", ""),
    ):
        monkeypatch.setattr(torch_groups, "get_backend_config", lambda group, c=config: c)
        monkeypatch.setattr(torch.cuda.nccl, "version", lambda v=nccl: v)
        said = private.unsummable(ddp, word)
        assert (why in said) if why else said == ""


class Job:
    """Rank 0 of a job, with what the service would be told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **environ: str) -> None:
        self.adapter = adapter = Adapter(read_settings({"HOROVOD_AUTOTUNE": "1", **environ}))
        self.hellos: list[protocol.Hello] = []
        monkeypatch.setattr(
            adapter.session, "launch", lambda hello, start, cores: self.hellos.append(hello)
        )
        self.ddp = wrapped()

    def decide(self, *others: Arrival) -> Verdict:
        """Have rank 0 decide, with ranks that say this beside it."""
        refused = self.adapter._refusals(self.ddp)
        own = Arrival(host="a", cores=[0], baseline={}, fixed=others[0].fixed, refused=refused)
        return self.adapter._decide([own, *others], self.ddp)


def other_rank(environ: dict[str, str]) -> Arrival:
    adapter = Adapter(read_settings(environ))
    refused = adapter._refusals(wrapped())
    fixed = adapter._settings.fixed
    return Arrival(host="a", cores=[1], baseline={}, fixed=fixed, refused=refused)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("here", "there", "table"),
    [
        ("", "", "ddp"),
        ("bf16", "bf16", "ddp+bf16"),
        ("bf16,static_graph", "static_graph", "ddp+static_graph"),
        ("bf16", "", "ddp"),
        ("", "bf16", "ddp"),
    ],
)
def test_only_what_all_ranks_name_is_explored(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    here: str,
    there: str,
    table: str,
) -> None:
    monkeypatch.setattr("autotune.ddp.adapter.logger.propagate", True)
    caplog.set_level("INFO", "autotune.ddp")
    job = Job(monkeypatch, **{EXPLORE: here})
    verdict = job.decide(other_rank({EXPLORE: there}))
    assert verdict.table == table == job.hellos[0].table and verdict.start is None
    said = [line for line in caplog.messages if "is not explored" in line]
    assert len(said) == len(set(filter(None, here.split(","))) - set(there.split(",")))
    assert all("do not name it (rank 1)" in line for line in said)


@pytest.mark.usefixtures("alone")
def test_what_is_fixed_and_one_rank_cannot_do_stays_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("autotune.ddp.adapter.logger.propagate", True)
    fixed = {"AUTOTUNE_BF16_GRADIENTS": "1"}
    job = Job(monkeypatch, **fixed)
    other = other_rank(fixed)
    assert job.decide(other).start == {**DdpParams().as_dict(), "bf16_gradients": True}
    monkeypatch.setattr(private, "unsummable", lambda ddp, word: "the backend cannot")
    verdict = job.decide(other)
    assert verdict.table == "ddp" and verdict.start == DdpParams().as_dict()
    assert job.hellos[-1].fixed == {}
    assert any("bf16_gradients stays off: the backend cannot" in one for one in caplog.messages)


@pytest.mark.usefixtures("alone")
def test_a_rank_whose_torch_cannot_be_asked_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> str:
        raise RuntimeError("what it was like")

    monkeypatch.setattr(private, "unsummable", fail)
    job = Job(monkeypatch, **{EXPLORE: "fp16"})
    assert "what it was like" in job.adapter._refusals(job.ddp)["fp16"]
    assert job.decide(other_rank({})).table == "ddp"


def test_compressed_gradients_need_room_beside_what_a_step_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapter = Adapter(read_settings({}))
    adapter._steps = SimpleNamespace(payload_bytes=100)  # type: ignore[assignment]
    for name, bytes_ in (
        ("mem_get_info", (60, 1000)),
        ("memory_reserved", 200),
        ("memory_allocated", 140),
        ("max_memory_allocated", 200),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda device, found=bytes_: found)
    assert adapter._finds_memory("cuda", False) and adapter._finds_memory("cuda", True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 220)
    assert adapter._finds_memory("cuda", False) and not adapter._finds_memory("cuda", True)
