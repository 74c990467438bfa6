"""The adapter of one process: watches its modules and optimizers, and makes changes when due.

A training step ends where the first optimizer that owns parameters of a DistributedDataParallel has
made its step. Buckets are made anew at the begin of the next forward pass that synchronises, the
same one on all ranks.

Whatever fails here after the constructor of the first module is one sentence: the rank tells the
others in the next round (``agreement``), and all of them go on with the buckets that they have.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from autotune.ddp import meeting
from autotune.ddp import torch_private as private
from autotune.ddp.agreement import Agreed, Agreement, Declined, Over, interval_of
from autotune.ddp.session import Session
from autotune.ddp.settings import JobSettings, replayed
from autotune.ddp.steps import Steps
from autotune.service import protocol
from autotune.service.step_source import StepSource
from autotune.tables.ddp import DdpParams

logger = logging.getLogger("autotune.ddp")

GROUP_PATIENCE = timedelta(seconds=60)
MEMORY_EVERY = 8
"""Steps from one look at a device's free memory to the next."""
SPARE = 1.1
"""Copies of the gradients that must fit into a device's free memory before buckets are made."""


@dataclass(kw_only=True)
class _Module:
    """A module that is watched, with what the script has set and what its buckets are made by."""

    ref: weakref.ref[Any]
    own: DdpParams
    params: DdpParams


class Adapter:
    """What one process does to be tuned.

    Args:
        settings: Of this rank.
    """

    def __init__(self, settings: JobSettings) -> None:
        self.session = Session()
        self.has_met = False
        self._settings = settings
        self._is_off = False
        self._has_failed = False
        self._rank, self._size = 0, 1
        self._modules: list[_Module] = []
        self._owned: set[int] = set()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next_number = itertools.count(1)
        self._source = StepSource()
        self._baseline = DdpParams()
        self._epoch, self._setting = 0, DdpParams()
        self._seen_steps, self._has_memory = 0, False
        self._ended = 0.0
        self._steps: Steps | None = None
        self._agreement: Agreement | None = None

    # ---- the start ------------------------------------------------------------------------------

    def wrapped(self, ddp: Any) -> None:
        """Take a module whose constructor has just ended. **Collective** for the first one."""
        if not self.has_met:
            self.has_met = True
            self._begin(ddp)
        if self._is_off:
            return
        own = private.setting_of(ddp)
        self._modules.append(_Module(ref=weakref.ref(ddp), own=own, params=own))
        self._owned |= {id(one) for one in ddp.module.parameters()}
        for optimizer in [one for one, number in self._numbers.items() if not number]:
            del self._numbers[optimizer]  # it may own some of these
        assert self._steps is not None
        self._steps.add_module(ddp)
        if self._is_timed(ddp):
            private.time_every_step(ddp)
        if (why := private.untunable(ddp)) is not None:
            self._stop(why)

    def _begin(self, ddp: Any) -> None:
        self._rank, self._size = dist.get_rank(ddp.process_group), ddp.process_group.size()
        if self._rank == 0 and self._settings.is_wanted:
            logger.setLevel(logging.INFO)
        reason = self._plain_reason()
        if not reason:
            try:
                reason = self._meet(ddp)
            except Exception as error:
                reason = f"the ranks did not come together ({_short(error)})"
                if self._rank == 0:
                    meeting.announce(private.default_store(), meeting.Verdict(reason=reason))
        if reason:
            self._is_off = True
            self.session.state, self.session.text = "nothing to tune", reason
            if self._rank == 0:
                logger.info("autotune: not tuned: %s", reason)

    def _plain_reason(self) -> str:
        """Return why nothing is to be done, where one rank alone can tell and all say the same."""
        if self._size == 1:
            return "a job of 1 rank does not communicate"
        if self._size != dist.get_world_size():
            return (
                f"DistributedDataParallel spans {self._size} of {dist.get_world_size()} ranks: "
                "expected all of them"
            )
        return ""

    def _meet(self, ddp: Any) -> str:
        """Tell the others what is here and do as rank 0 says; return why nothing is done."""
        trouble = private.unknown() or private.untunable(ddp) or ""
        self._baseline = DdpParams() if trouble else private.setting_of(ddp)
        store = private.default_store()
        arrival = meeting.Arrival(
            host=_host(),
            cores=sorted(os.sched_getaffinity(0)),
            baseline=self._baseline.as_dict(),
            fixed=dict(self._settings.fixed),
            trouble=trouble,
        )
        meeting.arrive(store, self._rank, arrival)
        if self._rank == 0:
            try:
                verdict = self._decide(meeting.arrivals(store, self._size), ddp)
            except Exception as error:
                verdict = meeting.Verdict(reason=_short(error))
            meeting.announce(store, verdict)
        verdict = meeting.verdict(store)
        if verdict.reason:
            return verdict.reason
        self._steps = Steps(is_device=self._is_device(ddp))
        start = self._baseline.as_dict() if verdict.start is None else verdict.start
        self._setting = DdpParams.from_dict(start)
        if verdict.is_tuned:
            group = dist.new_group(backend="gloo", timeout=GROUP_PATIENCE)
            begin = _rounds_in(group)
            self._agreement = Agreement(begin, DdpParams, rank=self._rank, size=self._size)
        self._watch(is_device=self._is_device(ddp))
        return ""

    def _decide(self, found: Sequence[meeting.Arrival], ddp: Any) -> meeting.Verdict:
        """**Rank 0 only.** Start the service where the job is tuned; return what all ranks do."""
        settings = self._settings
        if reason := meeting.disagreement(found):
            return meeting.Verdict(reason=reason)
        start = replayed(settings)
        is_replay = start is not None
        if start is None and settings.fixed:
            start = {**self._baseline.as_dict(), **settings.fixed}
        if is_replay:
            DdpParams.from_dict(start or {})
            logger.info("autotune: replays %s", settings.replay)
        is_check = is_replay and settings.check
        is_tuned = settings.is_on or is_check
        if is_tuned:
            hello = self._hello(found, ddp, check=start if is_check else None)
            here = [one for one in found if one.host == found[0].host]
            cores = {core for one in here for core in one.cores}
            self.session.launch(hello, start or self._baseline.as_dict(), cores)
            if not self.session.is_live:
                is_tuned = False
        return meeting.Verdict(is_tuned=is_tuned, start=start)

    def _hello(
        self, found: Sequence[meeting.Arrival], ddp: Any, *, check: Mapping[str, Any] | None
    ) -> protocol.Hello:
        settings = self._settings
        hosts = Counter(one.host for one in found)
        is_default = self._baseline == DdpParams()
        return protocol.Hello(
            csv_path=settings.csv_path if check is None else None,
            db_path=settings.db_path if check is None else None,
            settings=settings.tuner,
            fixed=settings.fixed,
            size=self._size,
            local_size=hosts[found[0].host],
            cross_size=len(hosts),
            versions={"torch": torch.__version__, "backend": dist.get_backend(ddp.process_group)},
            check=check,
            table=DdpParams.table.name,
            baseline={} if is_default else self._baseline.as_dict(),
            host=socket.gethostname(),
            pid=os.getpid(),
        )

    def _watch(self, *, is_device: bool) -> None:
        private.watch_forward(self.before_forward, self.forward_begun)
        ends = private.never_compiled(self.stepped)
        register_optimizer_step_post_hook(lambda optimizer, *_: ends(optimizer))
        if is_device and self._rank == 0:
            begins = private.never_compiled(self.before_step)
            register_optimizer_step_pre_hook(lambda optimizer, *_: begins(optimizer))

    # ---- while the job trains -------------------------------------------------------------------

    def before_forward(self, ddp: Any) -> None:
        """Make the module's buckets anew, where that is due.

        What was agreed on is made also where something has failed here since: the others make it.
        """
        if self._is_off or not private.synchronises(ddp) or private.is_joining(ddp):
            return
        module = self._module_of(ddp)
        if module is not None and self._wanted_of(module) != module.params:
            self._make(module, ddp, self._wanted_of(module))

    def forward_begun(self, ddp: Any) -> None:
        """Take note of a forward pass that synchronises."""
        if self._is_off or self._has_failed or self._agreement is None:
            return
        try:
            if self._is_device(ddp) and torch.cuda.is_current_stream_capturing():
                self._stop("the module is captured in a CUDA graph, which would keep old buckets")
            elif self._rank == 0 and private.synchronises(ddp):
                if self._steps is not None and self._module_of(ddp) is not None:
                    self._steps.forward(ddp)
        except Exception as error:
            self._fail(error)

    def before_step(self, optimizer: Any) -> None:
        """Take note that an optimizer begins its step."""
        if self._rank or self._is_off or self._has_failed or self._agreement is None:
            return
        try:
            if self._steps is not None and self._number_of(optimizer) is not None:
                self._steps.backward_ends()
        except Exception as error:
            self._fail(error)

    def stepped(self, optimizer: Any) -> None:
        """End a training step if this optimizer ends them; the same on all ranks."""
        if self._is_off or self._agreement is None:
            return
        number = self._number_of(optimizer)
        if number is None or not self._source.ends_step(number) or self._joins():
            return
        try:
            if not self._has_failed:
                self._report()
        except Exception as error:
            self._fail(error)
        try:
            interval = interval_of(self._step_s(), is_idle=self.session.is_idle)
            outcome = self._agreement.step(self.session.wanted, self._can_make, interval=interval)
        except Exception as error:
            self._end(f"rank {self._rank} has lost the others ({_short(error)})")
            return
        try:
            self._follow(outcome)
        except Exception as error:
            self._fail(error)

    def finish(self) -> None:
        """Hand over the last steps at the end of the process."""
        try:
            if self._steps is not None and self.session.is_live:
                self.session.add(self._steps.rest(), ())
            self.session.finish()
        except Exception as error:
            logger.warning("autotune: could not end properly: %s", _short(error))

    # ---- below ----------------------------------------------------------------------------------

    def _step_s(self) -> float:
        """Return the time since the last step ended on this host, in seconds."""
        before, self._ended = self._ended, time.perf_counter()
        return self._ended - before

    def _report(self) -> None:
        if self._seen_steps < 2:  # what the script has added to the modules is there by now
            self._stop_if_untunable()
        self._seen_steps += 1
        if self._rank == 0 and self._steps is not None and not self._has_failed:
            self.session.add(*self._steps.end(self._epoch, is_idle=self.session.is_idle))

    def _stop_if_untunable(self) -> None:
        for module in self._modules:
            ddp = module.ref()
            if ddp is not None and (why := private.untunable(ddp)) is not None:
                self._stop(why)

    def _follow(self, outcome: Agreed | Declined | Over | None) -> None:
        match outcome:
            case Agreed(change=change):
                self._epoch, self._setting = change.epoch, DdpParams.from_dict(change.params)
            case Declined(change=change, count=count):
                if self._rank == 0:
                    reason = f"{count} ranks have no memory left for new buckets"
                    self.session.decline(change, reason)
            case Over(reason=reason):
                self._end(reason)

    def _can_make(self) -> bool:
        """Return whether new buckets can be made here: whatever the setting, they are as large."""
        devices = [ddp.device for one in self._modules if (ddp := one.ref()) is not None]
        if self._steps is None or not devices or devices[0].type != "cuda":
            return not self._has_failed
        if self._seen_steps % MEMORY_EVERY == 1:
            self._has_memory = self._finds_memory(devices[0])
        return self._has_memory and not self._has_failed

    def _finds_memory(self, device: Any) -> bool:
        assert self._steps is not None
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + held >= SPARE * self._steps.payload_bytes

    def _make(self, module: _Module, ddp: Any, wanted: DdpParams) -> None:
        """Make buckets; where that fails, those that were there, without which nothing trains."""
        if (why := private.untunable(ddp)) is not None:
            self._stop(why)
            return
        is_timed = self._is_timed(ddp)
        try:
            private.make_buckets(ddp, wanted, is_timed=is_timed)
        except Exception as error:
            self._fail(error)
            wanted = module.params
            private.make_buckets(ddp, wanted, is_timed=is_timed)
        module.params = wanted

    def _wanted_of(self, module: _Module) -> DdpParams:
        """Return the setting in force: under the script's own, each module has its own."""
        return module.own if self._setting == self._baseline else self._setting

    def _module_of(self, ddp: Any) -> _Module | None:
        return next((one for one in self._modules if one.ref() is ddp), None)

    def _number_of(self, optimizer: Any) -> int | None:
        """Return the optimizer's number among those that own parameters of a module, or None."""
        number = self._numbers.get(optimizer)
        if number is None:
            groups = optimizer.param_groups
            owns = any(id(one) in self._owned for group in groups for one in group["params"])
            number = self._numbers[optimizer] = next(self._next_number) if owns else 0
            if owns:
                self._source.register(number, None)
        return number or None

    def _joins(self) -> bool:
        return any(
            private.is_joining(ddp) for one in self._modules if (ddp := one.ref()) is not None
        )

    def _is_timed(self, ddp: Any) -> bool:
        """Whether the module's own log of each step is read here: not where that waits."""
        return self._rank == 0 and self._agreement is not None and not self._is_device(ddp)

    @staticmethod
    def _is_device(ddp: Any) -> bool:
        return bool(ddp.device.type == "cuda")

    def _fail(self, error: Exception) -> None:
        self._stop(f"the adapter failed on rank {self._rank} ({_short(error)})")

    def _stop(self, why: str) -> None:
        """Change nothing here any more, and let the others know in the next round."""
        if self._has_failed or self._is_off:
            return
        self._has_failed = True
        logger.warning("autotune: tuning ends: %s; training goes on as it is", why)
        if self._agreement is None:
            self._is_off = True
        else:
            self._agreement.fail()

    def _end(self, reason: str) -> None:
        self._is_off = True
        if self._rank == 0:
            if not self._has_failed:
                logger.warning("autotune: tuning ends: %s; training goes on as it is", reason)
            self.session.give_up(reason)


class _Sum:
    """A sum that is on its way in a group."""

    def __init__(self, numbers: list[int], group: Any) -> None:
        self._numbers = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        self._work: Any = private.begin_sum(self._numbers, group)

    def wait(self, seconds: float) -> list[int]:
        """Return the sums; raises after ``seconds``."""
        self._work.wait(timedelta(seconds=seconds))
        return [int(one) for one in self._numbers.tolist()]


def _rounds_in(group: Any) -> Callable[[list[int]], _Sum]:
    return lambda numbers: _Sum(numbers, group)


def _host() -> str:
    """Return what tells machines apart, also where all have one name."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
