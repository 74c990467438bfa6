"""A sampler that spreads what is left of an epoch over whatever ranks there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch

from horovod.common.basics import rank, size


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Gives each rank its share of the samples that the epoch has not seen yet.

    Every sample comes once in an epoch, also when ranks are lost and come in between; where what is
    left cannot be divided evenly, some samples come twice, so that all ranks take equally many
    steps. Keep it in a ``TorchState``, call ``record_batch`` after each batch, and ``set_epoch`` at
    the end of an epoch.

    Args:
        dataset: Its length does not change.
        shuffle: Each epoch has an order of its own.
        seed: Of the order, the same on all ranks.

    Attributes:
        dataset, shuffle, seed: As given.
        epoch: Number of the epoch.
        processed_num: Samples that all ranks together have processed in this epoch.
        num_replicas: Number of ranks at the last ``reset``.
        rank: Of this process at the last ``reset``.
        num_samples: Of this rank, in what was left at the last ``reset``.
        total_size: Of all ranks, with samples that come twice.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 0
        self.rank = 0
        self.num_samples = 0
        self.total_size = 0
        self._remaining = torch.empty(0, dtype=torch.int64)
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """**Local**, every rank alike. Begin ``epoch``, of which no sample was processed.

        To be called at the end of the epoch before, not at the beginning: a function that is called
        again in the middle of an epoch would begin that one anew.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """**Local**, every rank alike. Take note of a batch that every rank has processed.

        Args:
            batch_idx: Number of the batch; its number does not matter.
            batch_size: Samples of one rank's batch.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """**Local.** Return the epoch and how many of its samples were processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """**Local**, every rank alike. Go on from there, with the ranks that there are now."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """**Local**, every rank alike. Spread what is left over the ranks that there are now."""
        self.num_replicas, self.rank = size(), rank()
        self._remaining = self._order()[self.processed_num :]
        self.num_samples = -(-len(self._remaining) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    @property
    def remaining_indices(self) -> list[int]:
        """**Local.** What was left of the epoch at the last ``reset``, in its order."""
        remaining: list[int] = self._remaining.tolist()
        return remaining

    def __iter__(self) -> Iterator[int]:
        if not self.total_size:
            return iter(())
        positions = torch.arange(self.rank, self.total_size, self.num_replicas)
        own: list[int] = self._remaining[positions % len(self._remaining)].tolist()
        return iter(own)

    def __len__(self) -> int:
        return self.num_samples

    def _order(self) -> torch.Tensor:
        """Return all samples in this epoch's order."""
        count = len(self.dataset)
        if not self.shuffle:
            return torch.arange(count)
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(count, generator=generator)
