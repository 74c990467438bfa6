"""U6 and U7: settings that make a job slow are told by one line each, to rank 0's reader."""

from __future__ import annotations

import os

import pytest

from e2e.commands import Commands

LOOP = """
import horovod.torch as hvd, torch
hvd.init()
torch.set_num_threads(1)
for step in range(5):
    started = [hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name=f"t{i}") for i in range(5)]
    assert all(bool((hvd.synchronize(handle) == 2).all()) for handle in started)
hvd.shutdown()
"""
WRAPPED = """
import horovod.torch as hvd, torch
hvd.init()
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(2, 2, bias=False) for _ in range(5)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for step in range(5):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
hvd.shutdown()
"""


@pytest.mark.parametrize("script", [LOOP, WRAPPED], ids=["loop", "optimizer"])
def test_more_threads_than_cores_and_a_small_cache_are_told_once(
    commands: Commands, script: str
) -> None:
    threads = 1 + (os.cpu_count() or 1)
    (commands.folder / "job.py").write_text(script)
    result = commands.run(
        *("horovodrun", "-np", "2", "--cache-capacity", "4", "python", "job.py"),
        limit_s=150,
        OMP_NUM_THREADS=str(threads),
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count(f"OMP_NUM_THREADS={threads} for ") == 1
    assert result.stderr.count("the response cache holds 4 of 5 tensors") == 1
    assert "HOROVOD_CACHE_CAPACITY >= 8" in result.stderr
