"""One of two ranks: trains each case twice, with fixed buckets and with buckets made anew live.

Rank 0 prints {case: [weights are equal, swaps, ranks are equal]} as JSON. Two summands commute, so
nothing may differ, not in one bit, however gradients are put into buckets.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from autotune.ddp import torch_private as private
from autotune.tables.ddp import DdpParams
from autotune.tables.further import extended

STEPS = 200
EVERY = 7
"""Steps from one swap to the next: 28 of them."""
CAPS = (2048, 0, 1, 8192, 700, 2**20)
SETTINGS = (
    *(DdpParams(bucket_cap_bytes=cap) for cap in CAPS),
    DdpParams(bucket_cap_bytes=8192, first_bucket_bytes=1024),
    DdpParams(first_bucket_bytes=4096),
)

STATIC = extended(DdpParams, ["static_graph"])


class Net(nn.Module):
    """Small layers; ``unused`` ones are left out where the caller says so."""

    def __init__(self, *, norm: bool = False, recompute: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.recompute = recompute

    def forward(self, x: torch.Tensor, skipped: int = -1) -> torch.Tensor:
        for k, layer in enumerate(self.layers):
            if k == skipped:
                continue
            y = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
            x = torch.tanh(y)
        return self.norm(x)


@dataclass(kw_only=True)
class Case:
    """How a script trains."""

    options: dict[str, Any] = field(default_factory=dict)
    net: dict[str, Any] = field(default_factory=dict)
    hook: Callable[[Any], None] = lambda ddp: None
    micro: int = 1
    sync_all: bool = False
    swap_at_micro: int = 0
    set_to_none: bool = True
    clip: bool = False
    skips: bool = False
    modules: int = 1
    views: bool = False
    static: bool = False
    under: Callable[[], Any] = contextlib.nullcontext
    swaps_without_grad: bool = False
    wrap: Callable[[nn.Module], nn.Module] = lambda net: net
    compiled: bool = False
    steps: int = STEPS


CASES = {
    "plain": Case(),
    "swapped_under_no_grad": Case(swaps_without_grad=True),
    "zero_grad_in_place": Case(set_to_none=False),
    "accumulation_without_sync": Case(micro=3),
    "accumulation_swapped_in_the_middle": Case(micro=3, swap_at_micro=1),
    "accumulation_with_sync": Case(micro=3, sync_all=True),
    "accumulation_with_sync_swapped_in_the_middle": Case(micro=3, sync_all=True, swap_at_micro=1),
    "static_graph": Case(options={"static_graph": True}),
    "static_graph_accumulation": Case(options={"static_graph": True}, micro=2),
    "static_graph_toggled": Case(static=True),
    "static_graph_toggled_with_accumulation": Case(static=True, micro=2, steps=5 * EVERY),
    "static_graph_toggled_with_a_hook": Case(
        hook=lambda ddp: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook),
        static=True,
        steps=10 * EVERY,
    ),
    "static_graph_toggled_and_compiled": Case(static=True, compiled=True, steps=5 * EVERY),
    "static_graph_of_the_script_is_kept": Case(
        options={"static_graph": True}, static=True, micro=2, steps=5 * EVERY
    ),
    "unused_parameters": Case(options={"find_unused_parameters": True}, skips=True),
    "bucket_view": Case(options={"gradient_as_bucket_view": True}),
    "bucket_view_zero_grad_in_place": Case(
        options={"gradient_as_bucket_view": True}, set_to_none=False
    ),
    "bucket_view_toggled": Case(views=True),
    "bucket_view_toggled_in_place_with_accumulation": Case(views=True, set_to_none=False, micro=2),
    "fp16_hook": Case(
        hook=lambda ddp: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    ),
    "allreduce_hook": Case(
        hook=lambda ddp: ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    ),
    "builtin_fp16_hook": Case(
        hook=lambda ddp: ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    ),
    "builtin_allreduce_hook": Case(
        hook=lambda ddp: ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    ),
    "clipping": Case(clip=True),
    "batch_norm": Case(net={"norm": True}),
    "checkpointing": Case(net={"recompute": True}),
    "two_modules": Case(modules=2),
    "autocast": Case(under=lambda: torch.autocast("cpu", torch.bfloat16)),
    "compiled_inside": Case(
        wrap=lambda net: torch.compile(net, backend="aot_eager"), steps=5 * EVERY
    ),
    "compiled_outside": Case(compiled=True, steps=5 * EVERY),
}


class Swaps:
    """Makes buckets anew at the next forward pass that synchronises, as the adapter does."""

    def __init__(self) -> None:
        self.settings: Iterator[DdpParams] = iter(())
        self.due: set[int] = set()
        self.count = 0
        self.views = self.static = self.is_own_static = False
        self.grad = True

    def begin(self, case: Case) -> None:
        self.settings, self.due, self.count = itertools.cycle(SETTINGS), set(), 0
        self.views, self.static = case.views, case.static
        self.grad = not case.swaps_without_grad
        self.is_own_static = case.options.get("static_graph", False)

    def before(self, ddp: Any) -> None:
        if id(ddp) not in self.due or not private.synchronises(ddp):
            return
        self.due.discard(id(ddp))
        view = bool(self.count % 2) if self.views else bool(ddp.gradient_as_bucket_view)
        params = next(self.settings).with_values({"gradient_as_bucket_view": view})
        is_static = self.static and not self.count % 2
        wanted = STATIC.from_dict({**params.as_dict(), "static_graph": is_static})
        with torch.enable_grad() if self.grad else torch.no_grad():
            private.make_buckets(ddp, wanted, is_timed=True)
        assert private.setting_of(ddp) == params
        assert ddp.static_graph == (is_static or self.is_own_static)
        self.count += 1


def train(case: Case, swaps: Swaps | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all weights after ``case.steps`` steps of Adam, as one vector, and all buffers."""
    torch.manual_seed(5)
    nets = [Net(**case.net) for _ in range(case.modules)]
    wrapped = [DistributedDataParallel(case.wrap(net), **case.options) for net in nets]
    for ddp in wrapped:
        case.hook(ddp)
    run = [torch.compile(ddp, backend="aot_eager") if case.compiled else ddp for ddp in wrapped]
    parameters = [one for net in nets for one in net.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    data = torch.Generator().manual_seed(11 + dist.get_rank())
    for step in range(case.steps):
        optimizer.zero_grad(set_to_none=case.set_to_none)
        for micro in range(case.micro):
            if swaps is not None and step % EVERY == EVERY - 1 and micro == case.swap_at_micro:
                swaps.due = {id(ddp) for ddp in wrapped}
            x = torch.randn(4, 16, generator=data)
            arguments = [(step + dist.get_rank()) % 7] if case.skips else []
            is_last = micro == case.micro - 1
            with contextlib.ExitStack() as stack:
                # torch itself wants the very first backward pass of a static graph to synchronise
                if not is_last and not case.sync_all and step > 0:
                    for ddp in wrapped:
                        stack.enter_context(ddp.no_sync())
                stack.enter_context(case.under())
                for one in run:
                    x = one(x, *arguments)
                loss = (x.float() - 0.1).pow(2).mean()
                loss.backward()
        if case.clip:
            nn.utils.clip_grad_norm_(parameters, 0.05)
        optimizer.step()
    buffers = [one for net in nets for one in net.buffers()]
    weights, rest = ([x.detach().double().flatten() for x in xs] for xs in (parameters, buffers))
    return torch.cat(weights), torch.cat([*rest, torch.zeros(0)])


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    assert private.unknown() is None
    swaps = Swaps()
    private.watch_forward(swaps.before)
    found = {}
    for name, case in CASES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        fixed = train(case, None)
        swaps.begin(case)
        live, buffers = train(case, swaps)
        is_equal = torch.equal(fixed[0], live) and torch.equal(fixed[1], buffers)
        others = [torch.empty_like(live) for _ in range(dist.get_world_size())]
        dist.all_gather(others, live)
        ranks = all(torch.equal(live, one) for one in others)
        found[name] = [is_equal, swaps.count, ranks]
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
