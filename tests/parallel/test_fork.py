"""Forked children: data loaders work while the job trains and tunes; a child ends nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import horovod.torch as hvd
from horovod.common import basics
from horovod.tuning import session

FAKE = Path(__file__).with_name("fake_service.py")


class Numbers(torch.utils.data.Dataset):
    """Item i is i on every worker; what Horovod says there is checked, too."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        assert hvd.rank() == self.rank
        return torch.tensor([float(index)])


@pytest.mark.timeout(60)
def test_data_loaders_with_workers_while_tuning(
    restart: Callable[[dict[str, str]], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    rank: int,
    size: int,
) -> None:
    behaviour = (str(FAKE), "apply", str(tmp_path / "heard"))
    monkeypatch.setattr(session, "SERVICE", behaviour)
    restart({"HOROVOD_AUTOTUNE": "1"})
    for epoch in range(2):
        loader = torch.utils.data.DataLoader(Numbers(rank), batch_size=4, num_workers=2)
        for i, batch in enumerate(loader):
            total = hvd.allreduce(batch, op=hvd.Sum, name="batch")
            expected = torch.arange(4.0).reshape(4, 1) + 4 * i
            assert torch.equal(total, expected * size), epoch
            hvd.autotune.step()
    assert hvd.autotune.status().state in ("tuning", "nothing to tune", "off")


def test_a_child_is_told_so_by_every_call_that_communicates() -> None:
    for _ in range(3):
        hvd.allreduce(torch.ones(1), name="repeated")
    calls: dict[str, Callable[[], object]] = {
        "allreduce": lambda: hvd.allreduce(torch.ones(1)),
        "repeated": lambda: hvd.allreduce(torch.ones(1), name="repeated"),
        "barrier": hvd.barrier,
        "join": hvd.join,
        "add_process_set": lambda: hvd.add_process_set([0]),
        "allgather_object": lambda: hvd.allgather_object(1),
        "init": lambda: (hvd.shutdown(), basics._process.__setattr__("job", None), hvd.init()),
    }
    for name, call in calls.items():
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            answer = "nothing was raised"
            try:
                call()
            except RuntimeError as error:
                answer = str(error)
            finally:
                os.write(writer, answer.encode())
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            assert "forked child" in stream.read(), name
        os.waitpid(pid, 0)
