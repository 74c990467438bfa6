"""The adapter of one process: watches its modules and optimizers, and makes changes when due.

A training step ends where the first optimizer that owns parameters of a DistributedDataParallel has
made its step. Buckets are made anew at the begin of the next forward pass that synchronises, the
same one on all ranks.

Whatever fails here after the constructor of the first module is one sentence. Rank 0 hears of it
with the next change that it proposes (``agreement``), and all ranks go on with the buckets they
have.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
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

from autotune.ddp import meeting, nccl
from autotune.ddp import torch_private as private
from autotune.ddp.agreement import Agreed, Agreement, Coordinator, Declined, Member, Over
from autotune.ddp.lines import Invitation, Listener, connect
from autotune.ddp.session import Session
from autotune.ddp.settings import JobSettings, kind_for, replayed
from autotune.ddp.steps import IDLE_STEPS, Steps
from autotune.nccl.offer import decided, offered
from autotune.nccl.plugin import Plugin
from autotune.nccl.start import versions_of
from autotune.service import protocol
from autotune.service.epochs import Change
from autotune.service.step_source import StepSource
from autotune.tables import settings_of
from autotune.tables.ddp import DdpParams
from autotune.tables.further import COMPRESSION, FURTHER, words_named, words_of
from autotune.tables.nccl import NCCL_PARAMETERS, DdpNcclParams, without_nccl

logger = logging.getLogger("autotune.ddp")

GROUP_PATIENCE = timedelta(seconds=60)
"""Of the group in which ranks compare how far NCCL has come."""
SPARE = 1.1
"""Copies of the gradients that must fit into a device's free memory before buckets are made."""
HALF = 0.5
"""Copies that compressed gradients take beside what a step needs at most."""


@dataclass(kw_only=True, slots=True, eq=False)
class _Module:
    """A module that is watched, with what the script has set and what its buckets are made by.

    Attributes:
        ref: Returns the module, None where it is gone.
        index: Its number for ``Steps``.
        is_device: It is on a CUDA device.
        own: What the script has set.
        params: What its buckets are made by.
        is_new: No forward pass of it has begun.
    """

    ref: Callable[[], Any]
    index: int
    is_device: bool
    own: DdpParams
    params: DdpParams
    is_new: bool = True


class Adapter:
    """What one process does to be tuned.

    Args:
        settings: Of this rank.
    """

    def __init__(self, settings: JobSettings) -> None:
        self.session = Session()
        self.has_met = False
        self._settings = settings
        self._is_off = self._has_failed = self._has_ended = False
        self._rank, self._size = 0, 1
        self._modules: dict[int, _Module] = {}
        self._due: list[_Module] = []
        self._has_joined = False
        self._owned: set[int] = set()
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next_number = itertools.count(1)
        self._source = StepSource()
        self._baseline = DdpParams()
        self._epoch, self._setting = 0, DdpParams()
        self._ender: weakref.ref[Any] | None = None
        self._seen_steps = self._passes = 0
        self._rest, self._stride, self._may_rest = 0, 1, False
        self._steps: Steps | None = None
        self._watched: Steps | None = None
        self._counts: list[int] = []
        self._listener: Listener | None = None
        self._agreement: Agreement | None = None
        self._kind: type[DdpParams] = DdpParams
        self._words: set[str] = set()
        self._switch: nccl.Switch | None = None
        self._told = self._refused = _of_nccl(DdpNcclParams())
        self._is_untold = False

    # ---- the start ------------------------------------------------------------------------------

    def wrapped(self, ddp: Any) -> None:
        """Take a module whose constructor has just ended. **Collective** for the first one."""
        if not self.has_met:
            self.has_met = True
            self._begin(ddp)
        if self._is_off:
            return
        assert self._steps is not None
        own, index = self._own_of(ddp), self._steps.add_module(ddp)
        self._modules[id(ddp)] = _Module(
            ref=weakref.ref(ddp), index=index, is_device=self._is_device(ddp), own=own, params=own
        )
        self._due = self._find_due()
        self._owned |= {id(one) for one in ddp.module.parameters()}
        for optimizer in [one for one, number in self._numbers.items() if not number]:
            del self._numbers[optimizer]  # it may own some of these
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
            nccl=nccl.link_here(),
            refused={} if trouble else self._refusals(ddp),
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
        self._counts = self._steps.counts
        self._kind = settings_of(verdict.table)  # type: ignore[assignment]
        self._words = set(words_of(self._kind.table))
        self._baseline = self._kind.from_dict(self._baseline.as_dict())
        start = self._baseline.as_dict() if verdict.start is None else verdict.start
        self._setting = self._kind.from_dict(start)
        if issubclass(self._kind, DdpNcclParams):
            group = dist.new_group(backend="gloo", timeout=GROUP_PATIENCE)
            self._switch = nccl.Switch(Plugin(offered()), _rounds_in(group), size=self._size)
            self._is_untold = True
        if verdict.invitation is not None:
            self._connect(verdict.invitation)
        self._watch(is_device=self._is_device(ddp))
        return ""

    def _refusals(self, ddp: Any) -> dict[str, str]:
        """**Local.** Return {word: why} of what this rank cannot have in force."""
        settings = self._settings
        named = {*settings.explored, *words_named(settings.fixed)}
        asked = set(FURTHER) if settings.replay else named
        refused = dict.fromkeys(FURTHER, "the rank's variables do not name it")
        try:
            own = private.refusals(ddp)
            for word in asked:
                why = own.get(word, "")
                if not why and word in COMPRESSION:
                    why = private.unsummable(ddp, word)
                refused[word] = why
        except Exception as error:
            refused |= dict.fromkeys(asked, _short(error))
        return {word: why for word, why in refused.items() if why}

    def _connect(self, invitation: Invitation) -> None:
        """Have lines between rank 0 and the others; without them the start is all that is made."""
        try:
            register = meeting.Decisions(private.default_store())
            if self._listener is not None:
                lines = self._listener.accept(self._size)
                self._agreement = Coordinator(lines, self._kind, register)
                self._watched = self._steps
            else:
                line = connect(invitation, self._rank, _host())
                self._agreement = Member(line, self._kind, register)
        except Exception as error:
            logger.warning("autotune: not tuned: %s", _short(error))
            self.session.give_up(_short(error))

    def _decide(self, found: Sequence[meeting.Arrival], ddp: Any) -> meeting.Verdict:
        """**Rank 0 only.** Start the service where the job is tuned; return what all ranks do."""
        settings = self._settings
        if reason := meeting.disagreement(found):
            return meeting.Verdict(reason=reason)
        start = replayed(settings)
        is_replay = start is not None
        if start is None and settings.fixed:
            start = {**self._baseline.as_dict(), **settings.fixed}
        is_tuned = settings.is_on and not is_replay
        explored = set(settings.explored) if is_tuned else set()
        refused = meeting.refusals(found)
        for word in sorted(explored & refused.keys()):
            logger.info("autotune: %s is not explored: %s", FURTHER[word].name, refused[word])
        for word in sorted(refused.keys() & words_named(start or {})):
            logger.warning("autotune: %s stays off: %s", FURTHER[word].name, refused[word])
            start = {**(start or {}), FURTHER[word].name: False}
        self._kind = kind_for(
            start,
            is_explored=is_tuned and self._explores_nccl(found),
            explored=explored - refused.keys(),
        )
        if issubclass(self._kind, DdpNcclParams) and not all(one.nccl for one in found):
            why = nccl.obstacle() or "NCCL has not loaded the tuner on all ranks"
            logger.warning("autotune: NCCL's own parameters cannot be set: %s", why)
            self._kind = without_nccl(self._kind)
        if start is not None:
            start = {**self._kind().as_dict(), **_of_table(start, self._kind)}
        if is_replay:
            logger.info("autotune: replays %s", settings.replay)
        is_check = is_replay and settings.check
        if settings.is_on or is_check:
            hello = self._hello(found, ddp, check=start if is_check else None)
            here = [one for one in found if one.host == found[0].host]
            cores = {core for one in here for core in one.cores}
            own = self._kind.from_dict(self._baseline.as_dict()).as_dict()
            self.session.launch(hello, start or own, cores)
            if self.session.is_live:
                self._listener = Listener(_host())
        invitation = None if self._listener is None else self._listener.invitation
        return meeting.Verdict(invitation=invitation, start=start, table=self._kind.table.name)

    def _explores_nccl(self, found: Sequence[meeting.Arrival]) -> bool:
        """**Rank 0 only.** Return whether NCCL's own parameters are tuned, too."""
        if nccl.obstacle():
            logger.info("autotune: NCCL's own parameters are not tuned: %s", nccl.obstacle())
        return nccl.is_worth_it([one.nccl for one in found])

    def _hello(
        self, found: Sequence[meeting.Arrival], ddp: Any, *, check: Mapping[str, Any] | None
    ) -> protocol.Hello:
        settings = self._settings
        hosts = Counter(one.host for one in found)
        is_default = self._baseline == DdpParams()
        has_nccl = issubclass(self._kind, DdpNcclParams)
        return protocol.Hello(
            csv_path=settings.csv_path if check is None else None,
            db_path=settings.db_path if check is None else None,
            settings=settings.tuner,
            fixed=_of_table(settings.fixed, self._kind),
            size=self._size,
            local_size=hosts[found[0].host],
            cross_size=len(hosts),
            versions={
                "torch": torch.__version__,
                "backend": dist.get_backend(ddp.process_group),
                **(versions_of(os.environ) if has_nccl else {}),
            },
            check=check,
            table=self._kind.table.name,
            inert=decided(os.environ) if has_nccl else {},
            baseline={} if is_default else self._kind.from_dict(self._baseline.as_dict()).as_dict(),
            host=socket.gethostname(),
            pid=os.getpid(),
        )

    def _watch(self, *, is_device: bool) -> None:
        private.watch_forward(self.before_forward)
        register_optimizer_step_post_hook(private.never_compiled(self.stepped))
        if is_device and self._rank == 0:
            has_gradients = private.never_compiled(self.has_gradients)

            def begins(
                optimizer: Any, given: tuple[Any, ...], named: dict[str, Any]
            ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
                return _then(lambda: has_gradients(optimizer), given, named)

            register_optimizer_step_pre_hook(begins)

    # ---- while the job trains -------------------------------------------------------------------

    def before_forward(self, ddp: Any) -> None:
        """Take note of the pass, and make the module's buckets anew where that is due."""
        module = self._modules.get(id(ddp))
        if self._is_off or module is None or module.ref() is not ddp:  # but one that was there
            return
        synchronises = private.synchronises(ddp)
        if not synchronises:
            self._has_joined |= synchronises is None
            return
        if ddp.training:
            self._passes += 1
        self._counts[module.index] += 1
        if not self._rest or self._due or self._is_untold or module.is_device:
            self._begin_pass(module, ddp)

    def _begin_pass(self, module: _Module, ddp: Any) -> None:
        """Make what was agreed on, also where something has failed here: the others make it."""
        if private.is_captured(ddp):
            self._leave("the module is captured in a CUDA graph, which keeps the buckets it has")
            return
        if module.is_new:
            module.is_new = False
            self._rule_out(ddp)
        if self._is_untold:
            self._is_untold = False
            self._tell_nccl()
        if module in self._due:
            self._make(module, ddp, self._wanted_of(module))
            self._due = self._find_due()
        if self._watched is not None and not self._rest:
            try:
                self._watched.forward(ddp)
            except Exception as error:
                self._fail(error)

    def _rule_out(self, ddp: Any) -> None:
        """Have nothing explored that goes against what the script has added to a new module."""
        if self._rank or not self._words:
            return
        try:
            refused = private.refusals(ddp)
        except Exception as error:
            self._fail(error)
            return
        for word in sorted(self._words & refused.keys()):
            name, why = FURTHER[word].name, refused[word]
            self._words.discard(word)
            if getattr(self._setting, name):
                logger.warning("autotune: %s stays off: %s", name, why)
            else:
                self.session.rule_out({name: why})

    def has_gradients(self, optimizer: Any) -> None:
        """Take note that an optimizer is about to use its gradients."""
        if self._watched is None or self._rest:
            return
        try:
            if self._number_of(optimizer) is not None:
                self._watched.backward_ends()
        except Exception as error:
            self._fail(error)

    def stepped(self, optimizer: Any) -> None:
        """End a training step if this optimizer ends them; the same on all ranks."""
        agreement = self._agreement
        if agreement is None or self._has_ended or self._is_off:
            return
        if (self._ender is None or self._ender() is not optimizer) and not self._ends(optimizer):
            return
        if self._has_joined:
            self._has_joined = False
        elif self._rest:
            self._rest -= 1
            agreement.pass_by(self._passes)
        else:
            self._end_step(agreement)

    def _end_step(self, agreement: Agreement) -> None:
        """Report the steps that end here, agree on what comes, and rest where nothing does."""
        try:
            if not self._has_failed:
                self._report()
        except Exception as error:
            self._fail(error)
        wanted = self.session.wanted
        if agreement.is_settled(wanted):
            agreement.pass_by(self._passes)
            if self._may_rest:
                self._stride, self._rest = IDLE_STEPS, IDLE_STEPS - 1
            return
        try:
            outcome = agreement.step(self._passes, wanted, self._can_make)
        except Exception as error:
            self._end(f"rank {self._rank} has lost the others ({_short(error)})")
            return
        if outcome is None:
            return
        try:
            self._follow(outcome)
        except Exception as error:
            self._fail(error)

    def finish(self) -> None:
        """Hand over the last steps at the end of the process."""
        try:
            if self._steps is not None and self.session.is_live:
                self.session.add(*self._steps.take())
            self.session.finish()
        except Exception as error:
            logger.warning("autotune: could not end properly: %s", _short(error))

    def forget(self) -> None:
        """Let go of service and lines in a forked child."""
        self._is_off, self._watched = True, None
        self.session.forget()
        if self._agreement is not None:
            self._agreement.forget()

    def _tell_nccl(self) -> None:
        """Put what the setting says of NCCL in force, once. **Collective** where it is news."""
        wanted = _of_nccl(self._setting)
        if self._switch is None or wanted in (self._told, self._refused):
            return
        try:
            reason = self._switch.make(wanted)
        except Exception as error:
            self._switch = None
            self._fail(error)
            return
        if not reason:
            self._told, self._refused = wanted, wanted
            return
        self._refused = wanted
        if self._rank:
            return
        change = Change(epoch=self._epoch, params=self._setting.as_dict())
        self.session.decline(change, reason, name="NCCL")
        if self._agreement is None:
            logger.warning("autotune: NCCL keeps its own choices: %s", reason)

    # ---- below ----------------------------------------------------------------------------------

    def _report(self) -> None:
        if self._seen_steps < 2:  # what the script has added to the modules is there by now
            self._stop_if_untunable()
        self._seen_steps += 1
        if self._watched is not None:
            count, self._stride = self._stride, 1
            is_long = self._watched.end(self._epoch, count=count)
            is_idle = self.session.step_ended(self._watched.take, is_urgent=is_long)
            self._may_rest = is_idle and self._watched.is_uniform

    def _stop_if_untunable(self) -> None:
        for module in self._modules.values():
            ddp = module.ref()
            if ddp is not None and (why := private.untunable(ddp)) is not None:
                self._stop(why)

    def _follow(self, outcome: Agreed | Declined | Over) -> None:
        match outcome:
            case Agreed(change=change):
                self._epoch, self._setting = change.epoch, self._kind.from_dict(change.params)
                self._is_untold = self._switch is not None
                self.session.changed()
                self._due = self._find_due()
            case Declined(change=change, count=count):
                if self._rank == 0:
                    reason = f"{count} of {self._size} ranks have no memory left for new buckets"
                    self.session.decline(change, reason)
            case Over(reason=reason):
                self._end(reason)

    def _can_make(self, params: Mapping[str, Any]) -> bool:
        """Return whether new buckets can be made here: whatever their sizes, they are as large."""
        devices = [ddp.device for one in self._modules.values() if (ddp := one.ref())]
        if self._steps is None or not devices or devices[0].type != "cuda":
            return not self._has_failed
        is_compressed = not COMPRESSION.keys().isdisjoint(words_named(params))
        return not self._has_failed and self._finds_memory(devices[0], is_compressed)

    def _finds_memory(self, device: Any, is_compressed: bool) -> bool:
        assert self._steps is not None
        payload = self._steps.payload_bytes
        free, _ = torch.cuda.mem_get_info(device)
        room = free + torch.cuda.memory_reserved(device)
        if is_compressed and room - torch.cuda.max_memory_allocated(device) < HALF * payload:
            return False
        return room - torch.cuda.memory_allocated(device) >= SPARE * payload

    def _make(self, module: _Module, ddp: Any, wanted: DdpParams) -> None:
        """Make buckets; where that fails, those that were there, without which nothing trains."""
        if (why := private.untunable(ddp)) is not None:
            self._stop(why)
            return
        is_timed = self._is_timed(ddp)
        try:
            private.make_buckets(ddp, wanted, is_timed=is_timed, instead=module.params)
        except Exception as error:
            self._fail(error)
            wanted = module.params
        module.params = wanted

    def _find_due(self) -> list[_Module]:
        """Return the modules that were not made by the setting in force yet."""
        return [one for one in self._modules.values() if self._wanted_of(one) != one.params]

    def _wanted_of(self, module: _Module) -> DdpParams:
        """Return the setting in force: under the script's own, each module has its own."""
        buckets = _buckets_of(self._setting)
        return module.own if buckets == _buckets_of(self._baseline) else buckets

    def _own_of(self, ddp: Any) -> DdpParams:
        """Return what the script has set, as a setting of what modules are made by here."""
        return without_nccl(self._kind).from_dict(private.setting_of(ddp).as_dict())

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

    def _ends(self, optimizer: Any) -> bool:
        """Return whether this optimizer ends a step; it need not be asked again if no other is."""
        number = self._number_of(optimizer)
        if number is None:
            return False
        ends = self._source.ends_step(number)
        self._ender = weakref.ref(optimizer) if ends else None
        return ends

    def _is_timed(self, ddp: Any) -> bool:
        """Whether the module's own log of each step is read here: not where that waits."""
        return self._rank == 0 and self._agreement is not None and not self._is_device(ddp)

    @staticmethod
    def _is_device(ddp: Any) -> bool:
        return bool(ddp.device.type == "cuda")

    def _fail(self, error: Exception) -> None:
        self._stop(f"the adapter failed on rank {self._rank} ({_short(error)})")

    def _stop(self, why: str) -> None:
        """Change nothing here any more, and let rank 0 know with the next change."""
        if self._has_failed or self._has_ended or self._is_off:
            return
        self._has_failed, self._watched = True, None
        logger.warning("autotune: tuning ends: %s; training goes on as it is", why)
        if self._agreement is None:
            self._is_off = True
        else:
            self._agreement.fail()

    def _leave(self, why: str) -> None:
        """End it at once, at the same place of the training on all ranks."""
        if self._agreement is not None and not self._has_ended:
            self._end(why)
        self._is_off, self._watched = True, None

    def _end(self, reason: str) -> None:
        """Agree on nothing more; what was agreed on before is made all the same."""
        self._has_ended, self._watched = True, None
        if self._agreement is not None:
            self._agreement.close()
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


def _then(
    act: Callable[[], None], given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Have ``act`` called when the gradients of an optimizer's step are there.

    They are when the step begins, unless it is given a closure that computes them (as Lightning
    does): then they are when that has ended.

    Args:
        act: What is called.
        given: The optimizer and what else its step is called with.
        named: The same, by name.

    Returns:
        The arguments with another closure, None if there is none.
    """
    is_named = "closure" in named
    closure = named["closure"] if is_named else next(iter(given[1:]), None)
    if not callable(closure):
        act()
        return None

    def run() -> Any:
        loss = closure()
        act()
        return loss

    if is_named:
        return given, {**named, "closure": run}
    return (given[0], run, *given[2:]), named


def _rounds_in(group: Any) -> Callable[[list[int]], _Sum]:
    return lambda numbers: _Sum(numbers, group)


def _of_table(values: Mapping[str, Any], kind: type[DdpParams]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in kind.table.by_name}


def _of_nccl(params: DdpParams) -> dict[str, int]:
    return {row.name: int(getattr(params, row.name, 0)) for row in NCCL_PARAMETERS}


def _buckets_of(params: DdpParams) -> DdpParams:
    return params.buckets if isinstance(params, DdpNcclParams) else params


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
