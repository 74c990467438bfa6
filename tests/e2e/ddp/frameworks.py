"""A script of a user of Lightning, of the Trainer of Hugging Face, of Accelerate or of DeepSpeed.

    torchrun --nproc-per-node 2 frameworks.py lightning|trainer|accelerate|deepspeed [FOLDER]

It knows no tuner. Rank 0 prints the exact sum of all weights.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from fractions import Fraction

import torch

SAMPLES, BATCH, PAUSE_S = 3200, 8, 0.02


class Net(torch.nn.Module):
    """Takes some time a step, as work would: the job lasts longer than the tuner's imports."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(12)))

    def forward(self, x: torch.Tensor, labels: object = None) -> dict[str, torch.Tensor]:
        time.sleep(PAUSE_S)
        return {"loss": self.layers(x).pow(2).mean()}


class Data(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.x = torch.randn(SAMPLES, 64, generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, k: int) -> dict:
        return {"x": self.x[k], "labels": 0}


def lightning(net: Net, folder: str) -> bool:
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: dict, index: int) -> torch.Tensor:
            return self.net(batch["x"])["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(Data(), batch_size=BATCH))
    return trainer.global_rank == 0


def trainer(net: Net, folder: str) -> bool:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model=net, args=arguments, train_dataset=Data()).train()
    return arguments.process_index == 0


def accelerate(net: Net, folder: str) -> bool:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = torch.utils.data.DataLoader(Data(), batch_size=BATCH)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(batch["x"])["loss"])
        optimizer.step()
    return bool(accelerator.is_main_process)


def deepspeed(net: Net, folder: str) -> bool:
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo")

    engine, *_ = deepspeed.initialize(
        model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=1e-3),
        config={"train_micro_batch_size_per_gpu": BATCH, "zero_optimization": {"stage": 0}},
    )
    rank = torch.distributed.get_rank()
    loader = torch.utils.data.DataLoader(Data(), batch_size=BATCH)
    for batch in list(loader)[rank::2]:
        engine.backward(engine(batch["x"])["loss"])
        engine.step()
    return rank == 0


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = Net()
    train: Callable[[Net, str], bool] = globals()[sys.argv[1]]
    if train(net, sys.argv[2] if len(sys.argv) > 2 else "out"):
        each = (x for p in net.parameters() for x in p.flatten().tolist())
        total = sum(map(Fraction, each), Fraction())
        print("checksum", total.numerator % (2**61 - 1), total.denominator)


if __name__ == "__main__":
    main()
