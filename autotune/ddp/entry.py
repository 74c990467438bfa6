"""How the adapter gets into a script: by ``install()``, or by ``autotune run`` without a line.

Nothing here imports torch, and nothing is done before the first DistributedDataParallel module is
made: until then there is a constructor that somebody listens to.
"""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from autotune.errors import AutotuneError
from autotune.service import variables
from autotune.service.status_line import StandardError

if TYPE_CHECKING:
    from autotune.ddp.adapter import Adapter

MODULE = "torch.nn.parallel.distributed"
"""Where the class is that is listened to."""
GROUPS = "torch.distributed.distributed_c10d"
"""Where the function is after which ranks can talk, and NCCL has not begun."""

_SPEAKER = "_AUTOTUNE_SPEAKER"
"""Tells processes that rank 0 starts, which inherit its RANK, that they are not it."""

logger = logging.getLogger("autotune.ddp")


@dataclass(frozen=True, kw_only=True)
class Status:
    """What this rank knows of the tuning.

    Attributes:
        state: "off", "nothing to tune", "starting", "tuning", "done" or "lost"; only rank 0 tunes.
        text: The last line about it, or the reason of the state.
    """

    state: str
    text: str


class _Entry:
    """The one adapter of this process, made with the first module."""

    def __init__(self) -> None:
        self.is_listening = self.speaks = False
        self.adapter: Adapter | None = None
        self.is_off = False

    def wrapped(self, ddp: Any) -> None:
        """Hand a new module over; whatever fails is one sentence."""
        if self.is_off:
            return
        try:
            if self.adapter is None:
                self.adapter = _make_adapter()
            self.adapter.wrapped(ddp)
        except Exception as error:
            self.is_off = True
            logger.warning("autotune: not tuned: %s", error)

    def finish(self) -> None:
        """Say what there is to say at the end of the process."""
        if self.adapter is not None:
            self.adapter.finish()
        elif not self.is_off and self.speaks and "torch.distributed" in sys.modules:
            logger.warning("autotune: nothing was tuned: %s", _why_no_module())


_entry = _Entry()


def install(log: str | None = None) -> None:
    """Tune this job. **Local**; every rank calls it before it wraps its model.

    ``HOROVOD_AUTOTUNE=0`` switches it off, ``HOROVOD_AUTOTUNE_LOG`` overrides ``log``, and the
    tuner's other variables serve, too.

    Args:
        log: Path of the CSV log; None: the tuner keeps none.
    """
    if not os.environ.get(f"{variables.PREFIX}_REPLAY", "").strip():
        os.environ.setdefault(variables.PREFIX, "1")
    if log is not None:
        os.environ.setdefault(f"{variables.PREFIX}_LOG", log)
    listen()


def status() -> Status:
    """**Local**, never communicates. Return what this rank knows of the tuning."""
    if _entry.adapter is None:
        return Status(state="off", text="no DistributedDataParallel module was made")
    session = _entry.adapter.session
    return Status(state=session.state, text=session.text)


def is_wanted(environ: Mapping[str, str]) -> bool:
    """Return whether a script with this environment is to be tuned, or to replay something."""
    own = ("AUTOTUNE_DDP_", "AUTOTUNE_NCCL_", "AUTOTUNE_FP16_", "AUTOTUNE_BF16_")
    names = [f"{variables.PREFIX}_REPLAY", *(n for n in environ if n.startswith(own))]
    return is_on(environ) or any(environ.get(name, "").strip() for name in names)


def is_on(environ: Mapping[str, str]) -> bool:
    """Return whether a script with this environment is to be tuned."""
    return environ.get(variables.PREFIX, "").strip() not in ("", "0")


def listen() -> None:
    """Have modules handed over when they are made, whether torch is imported already or not."""
    if _entry.is_listening:
        return
    _entry.is_listening = True
    _entry.speaks = _is_rank_zero_itself()
    _prepare_nccl()
    _write_lines()
    atexit.register(_entry.finish)
    _when_imported(MODULE, "DistributedDataParallel", _listen_to)
    if is_on(os.environ) or os.environ.get(f"{variables.PREFIX}_REPLAY", "").strip():
        _when_imported(GROUPS, "init_process_group", _settle_after)


def _prepare_nccl() -> None:
    from autotune.ddp import nccl

    nccl.prepare(os.environ)


def _when_imported(name: str, attribute: str, act: Callable[[ModuleType], None]) -> None:
    """Have ``act`` called with the module ``name``, now if it is whole already."""
    module = sys.modules.get(name)
    if module is not None and hasattr(module, attribute):
        act(module)
    else:
        sys.meta_path.insert(0, _Watcher(name, act))


class _Watcher(importlib.abc.MetaPathFinder):
    """Sees one module when it is imported, and leaves all else to the others."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name, self._act = name, act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec that the others have, with a loader that tells when it is done."""
        if fullname != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        act = self._act
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            plain = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                plain(module)
                act(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _listen_to(module: ModuleType) -> None:
    kind: Any = module.DistributedDataParallel
    plain = kind.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        plain(self, *arguments, **options)
        _entry.wrapped(self)

    kind.__init__ = __init__


def _settle_after(module: ModuleType) -> None:
    """Have NCCL's start-up settings found as soon as the ranks of a job have met."""
    plain = module.init_process_group

    @functools.wraps(plain)
    def init_process_group(*arguments: Any, **options: Any) -> None:
        plain(*arguments, **options)
        if not os.environ.get("RANK"):  # who has started the ranks has told them by other means
            _entry.speaks = module.get_rank() == 0
        try:
            from autotune.ddp import nccl, torch_private

            line = nccl.settle_start(module, options, torch_private.default_store)
        except Exception as error:
            line = f"NCCL's start-up settings stay: {error}"
        if line and _entry.speaks:
            logger.setLevel(logging.INFO)
            logger.info("autotune: %s", line)

    module.init_process_group = init_process_group  # type: ignore[attr-defined]
    public = sys.modules.get("torch.distributed")
    if public is not None and getattr(public, "init_process_group", None) is plain:
        public.init_process_group = init_process_group  # type: ignore[attr-defined]


def _make_adapter() -> Adapter:
    from autotune.ddp.adapter import Adapter
    from autotune.ddp.settings import read_settings

    try:
        settings = read_settings(os.environ)
    except AutotuneError as error:
        raise AutotuneError(f"{error} (rank {os.environ.get('RANK', '?')})") from None
    adapter = Adapter(settings)
    os.register_at_fork(after_in_child=adapter.forget)
    return adapter


def _write_lines() -> None:
    """Have the adapter's lines written to standard error, unless the script takes them."""
    if not logger.handlers:
        handler = StandardError()
        handler.setFormatter(logging.Formatter("[ddp] %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False


def _is_rank_zero_itself() -> bool:
    """Return whether this is rank 0's process, and none that rank 0 has started."""
    if os.environ.get("RANK", "") != "0":
        return False
    return os.environ.setdefault(_SPEAKER, str(os.getpid())) == str(os.getpid())


def _why_no_module() -> str:
    others = {
        "deepspeed": "DeepSpeed",
        "torch.distributed.fsdp": "FullyShardedDataParallel",
    }
    used = [name for module, name in others.items() if module in sys.modules]
    hint = f"; what else may be in use here is not tuned: {', '.join(used)}" if used else ""
    return f"no DistributedDataParallel module was made{hint}"
