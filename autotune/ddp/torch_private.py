"""Torch's private parts: how the buckets of a living DistributedDataParallel are made anew.

Every attribute that is no public interface of torch is used here and nowhere else, and ``unknown``
looks for all of them before the first use. They were read in the sources of torch 2.4 to 2.14. The
capacities are in ``_bucket_config`` in later ones, before that in attributes of the module.

New buckets come from the module's own helpers: the hooks of the old reducer go, capacities are set,
reducer and logger are initialised as the constructor does, and what the script had added to them
(static graph, communication hook) is added again. A hook of ours is told to the reducer alone: the
module and its logger, by which a script's hook is known, never hear of it.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from autotune.tables.ddp import DEFAULT_BUCKET_CAP_BYTES, FIRST_BUCKET_BYTES, DdpParams
from autotune.tables.further import words_named

dist: Any = torch.distributed
DdpClass: Any = DistributedDataParallel

OLDEST = (2, 4)
STATELESS_HOOKS = (
    default_hooks.allreduce_hook,
    default_hooks.fp16_compress_hook,
    default_hooks.bf16_compress_hook,
)
"""Communication hooks that keep nothing per bucket."""
_COMPRESSION = {
    "fp16": (torch.float16, default_hooks.fp16_compress_hook),
    "bf16": (torch.bfloat16, default_hooks.bf16_compress_hook),
}
"""{word of ``tables.further``: type in which gradients travel, hook that casts them}."""
_OLDEST_NCCL = {"bf16": (2, 10)}
_ADDING_PATIENCE = timedelta(seconds=5)
_METHODS = (
    "_build_debug_param_to_name_mapping",
    "_build_params_for_reducer",
    "_ddp_init_helper",
    "_pre_forward",
    "_register_builtin_comm_hook",
    "_set_ddp_runtime_logging_sample_rate",
)
_INIT_ARGUMENTS = [
    "self",
    "parameters",
    "expect_sparse_gradient",
    "param_to_name_mapping",
    "static_graph",
]
_ATTRIBUTES = (
    "_comm_hooks",
    "_join_config",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "logger",
    "mixed_precision",
    "reducer",
    "require_backward_grad_sync",
    "static_graph",
)
_FIRST = "_autotune_first_bucket_bytes"
"""Ours: what the first bucket was made by, where torch keeps no such attribute."""
_STATIC = "_autotune_static_graph"
"""Ours: that the graph is taken to be static was not said by the script."""
_SIZES = ("bucket_bytes_cap", "bucket_bytes_cap_default")
_TIMES = ("backward_comm_time_end", "backward_compute_time_end")


def unknown() -> str | None:
    """Return why this torch is not one whose private parts are known, or None."""
    numbers = torch.__version__.split("+")[0].split(".")[:2]
    if all(one.isdecimal() for one in numbers) and tuple(map(int, numbers)) < OLDEST:
        return f"torch {torch.__version__}: expected 2.4 or newer"
    missing = [name for name in _METHODS if not hasattr(DdpClass, name)]
    if not hasattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES"):
        missing.append("_DEFAULT_FIRST_BUCKET_BYTES")
    if not missing:
        helper = inspect.signature(DdpClass._ddp_init_helper)
        if list(helper.parameters) != _INIT_ARGUMENTS:
            missing.append("_ddp_init_helper with the arguments known so far")
    if missing:
        return f"torch {torch.__version__} is not known here: DistributedDataParallel lacks " + (
            ", ".join(missing)
        )
    return None


def untunable(ddp: Any) -> str | None:
    """Return why the buckets of this module cannot be made anew, or None."""
    if getattr(ddp, "_use_python_reducer", False):
        return "its buckets are compiled (optimize_ddp='python_reducer')"
    if getattr(ddp, "_delay_all_reduce_params", None):
        return "it delays the reduction of some parameters"
    if getattr(ddp, "bucket_bytes_cap_list", None):
        return "its buckets have capacities of their own (bucket_cap_mb_list)"
    missing = [name for name in _ATTRIBUTES if not hasattr(ddp, name)]
    if missing:
        return f"torch {torch.__version__} is not known here: it lacks {', '.join(missing)}"
    if not hasattr(ddp, "_bucket_config") and any(not hasattr(ddp, name) for name in _SIZES):
        return f"torch {torch.__version__} is not known here: it lacks {', '.join(_SIZES)}"
    if ddp.mixed_precision is not None:
        return "it has a mixed_precision of its own"
    return _untunable_now(ddp)


def _untunable_now(ddp: Any) -> str | None:
    """Return what of ``untunable`` may also come after the constructor."""
    if any(hasattr(one, "_in_backward_optimizers") for one in ddp.module.parameters()):
        return "its optimizer runs in the backward pass"
    others = [hook for hook, _ in ddp._comm_hooks if hook not in STATELESS_HOOKS]
    if others:
        name = getattr(others[0], "__qualname__", repr(others[0]))
        return f"its communication hook {name} may keep a state per bucket"
    builtin = _builtin_hook_name(ddp)
    if builtin and _builtin_hook(builtin) is None:
        return f"its communication hook {builtin} is not known here"
    return None


def setting_of(ddp: Any) -> DdpParams:
    """Return what the module's buckets are made by now."""
    config = getattr(ddp, "_bucket_config", None)
    cap = int(config.bucket_bytes_cap if config is not None else ddp.bucket_bytes_cap)
    if config is not None:
        first = int(config.first_bucket_bytes_cap)
    else:
        own = getattr(ddp, _FIRST, dist._DEFAULT_FIRST_BUCKET_BYTES)
        first = own if ddp.bucket_bytes_cap_default else cap
    is_none = cap == DEFAULT_BUCKET_CAP_BYTES and first < cap
    is_usual = first == (FIRST_BUCKET_BYTES if is_none else cap)
    return DdpParams(
        bucket_cap_bytes=0 if is_none else max(1, cap),
        first_bucket_bytes=0 if is_usual else max(1, first),
        gradient_as_bucket_view=bool(ddp.gradient_as_bucket_view),
    )


def refusals(ddp: Any) -> dict[str, str]:
    """Return {word of ``tables.further``: why} of what the module cannot have in force."""
    found: dict[str, str] = {}
    if why := _uncompressible(ddp):
        found |= dict.fromkeys(_COMPRESSION, why)
    if ddp.find_unused_parameters:
        found["static_graph"] = "the module finds unused parameters (find_unused_parameters=True)"
    elif ddp.static_graph and not getattr(ddp, _STATIC, False):
        found["static_graph"] = "the module has it already (static_graph=True)"
    return found


def _uncompressible(ddp: Any) -> str:
    hook = _builtin_hook_name(ddp)
    if ddp._comm_hooks:
        hook = getattr(ddp._comm_hooks[0][0], "__qualname__", repr(ddp._comm_hooks[0][0]))
    if hook:
        return f"the module has a communication hook of its own ({hook})"
    embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    if any(isinstance(one, embeddings) and one.sparse for one in ddp.module.modules()):
        return "the module has sparse gradients"
    if any(one.is_complex() for one in ddp.module.parameters() if one.requires_grad):
        return "the module has complex parameters"
    return ""


def unsummable(ddp: Any, word: str) -> str:
    """Return why the module's backend cannot add up compressed gradients, "" where it can.

    **Local**: gloo is asked in a group of this rank alone, and of NCCL it is known.

    Args:
        ddp: The module.
        word: "fp16" or "bf16".
    """
    dtype, _ = _COMPRESSION[word]
    config = dist.distributed_c10d.get_backend_config(ddp.process_group)
    backends = dict(one.split(":", 1) for one in config.split(",") if ":" in one)
    backend = backends.get(ddp.device.type, config)
    if backend == "gloo":
        try:
            alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, _ADDING_PATIENCE)
            alone.allreduce([torch.zeros(1, dtype=dtype)]).wait()
        except RuntimeError as error:
            return f"gloo cannot add up {dtype} ({str(error).splitlines()[0]})"
        return ""
    if backend == "nccl":
        cuda: Any = torch.cuda
        is_known = cuda.nccl.version() >= _OLDEST_NCCL.get(word, (0,))
        return "" if is_known else f"this NCCL cannot add up {dtype}"
    return f"whether the backend {backend!r} can add up {dtype} is not known"


def make_buckets(
    ddp: Any, params: DdpParams, *, is_timed: bool, instead: DdpParams | None = None
) -> None:
    """Make the module's buckets anew. Every rank calls it at the same place of its training.

    The old ones are let go first, so no more than one copy of the gradients is there in addition.
    What the module refuses (``refusals``) is left out. Where it fails it is tried again, with the
    memory that torch holds in reserve: the other ranks have made theirs.

    Args:
        ddp: A module for which ``untunable`` is None, at the begin of a forward pass that
            synchronises.
        params: The setting.
        is_timed: Have ``exposed_us`` know of every step from here on.
        instead: The setting of the buckets that are made where these cannot be, without which
            nothing trains.

    Raises:
        Exception: What torch has raised; the buckets are those of ``instead``.
    """
    hook = _builtin_hook_name(ddp)  # the logger knows it, which goes with the buckets
    try:
        _make(ddp, params, hook, is_timed=is_timed)
    except Exception:
        if ddp.device.type == "cuda":
            torch.cuda.empty_cache()
        try:
            _make(ddp, params, hook, is_timed=is_timed)
        except Exception:
            if instead is not None:
                _make(ddp, instead, hook, is_timed=is_timed)
            raise


def _make(ddp: Any, params: DdpParams, builtin: str, *, is_timed: bool) -> None:
    hooks = list(ddp._comm_hooks)
    words = set(words_named(params.as_dict()))
    words -= refusals(ddp).keys() if words else set()
    if ddp.reducer is not None:
        ddp.reducer._remove_autograd_hooks()
    ddp.logger = ddp.reducer = None
    _set_sizes(ddp, params)
    ddp.gradient_as_bucket_view = params.gradient_as_bucket_view
    _set_static(ddp, is_static="static_graph" in words)
    parameters, expect_sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    with _first_bucket_of(params):
        ddp._ddp_init_helper(parameters, expect_sparse, names, ddp.static_graph)
    ddp._has_rebuilt_buckets = False
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = False
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()
    if hooks:
        hook, state = hooks[0]
        ddp.logger._set_comm_hook_name(hook.__qualname__)
        dist._register_comm_hook(ddp.reducer, state, hook)
    elif builtin:
        ddp._register_builtin_comm_hook(_builtin_hook(builtin))
    for word in words & _COMPRESSION.keys():
        dist._register_comm_hook(ddp.reducer, ddp.process_group, _COMPRESSION[word][1])
    if is_timed:
        time_every_step(ddp)


def time_every_step(ddp: Any) -> None:
    """Have ``exposed_us`` know of every step. Costs a wait for the device where there is one."""
    ddp._set_ddp_runtime_logging_sample_rate(1)


def exposed_us(ddp: Any) -> float:
    """Return how long communication went on after the latest backward pass that was logged, in us.

    It is logged when the next forward pass begins; 0 where it is not known.
    """
    found = ddp.logger._get_ddp_logging_data().ints_map if ddp.logger is not None else {}
    ends = [found.get(name, 0) for name in _TIMES]
    return max(0, ends[0] - ends[1]) / 1000 if all(ends) else 0.0


def log_backward(ddp: Any) -> None:
    """Have the latest backward pass logged now, not when the next forward pass begins."""
    ddp.logger.set_runtime_stats_and_log()


def synchronises(ddp: Any) -> bool | None:
    """Return whether a forward pass that begins now has its gradients reduced.

    None: the module is in a ``join()``, where ranks end at different steps.
    """
    if ddp._join_config.enable:
        return None
    return ddp.require_backward_grad_sync and torch.is_grad_enabled()


def is_captured(ddp: Any) -> bool:
    """Return whether what the module does now becomes a CUDA graph."""
    return ddp.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def watch_forward(before: Callable[[Any], None]) -> None:
    """Have a function called with each module whose forward pass begins, before all else.

    Args:
        before: The function.
    """
    plain = DdpClass._pre_forward

    def _pre_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        before(self)
        return plain(self, *inputs, **kwargs)

    before = never_compiled(before)
    DdpClass._pre_forward = _left_alone(_pre_forward)


def never_compiled(function: Callable[[Any], None]) -> Callable[..., None]:
    """Return a function that ``torch.compile`` leaves alone, whatever it is called from.

    What torch puts around it for that takes some 40 us where caches are cold, and is left out
    where nothing is being compiled. Further arguments, which torch gives to hooks, are ignored.
    """
    compiler: Any = torch.compiler
    guarded: Callable[[Any], None] = compiler.disable(function)
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    compiling = getattr(frames, "get_eval_frame_callback", lambda: guarded)

    def run(given: Any, *_: Any) -> None:
        if compiling() is None:
            function(given)
        else:
            guarded(given)

    return _left_alone(run)


def _left_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose own frame is not compiled, while those that it calls may be.

    What ``torch.compiler`` offers for that is a wrapper that takes longer than what it wraps.
    """
    compiler: Any = torch.compiler
    wrapped: Callable[..., Any] = compiler.disable(function, recursive=False)
    skip = getattr(sys.modules.get("torch._dynamo.decorators"), "skip", None)
    return wrapped if skip is None else skip(function)


def begin_sum(numbers: torch.Tensor, group: Any) -> Any:
    """Begin a sum of ``numbers`` over all ranks, in place; return what to wait for."""
    return group.allreduce([numbers])


def default_store() -> Any:
    """Return the key-value store that the ranks of the default group have in common."""
    return dist.distributed_c10d._get_default_store()


def _set_sizes(ddp: Any, params: DdpParams) -> None:
    cap = params.bucket_cap_bytes or DEFAULT_BUCKET_CAP_BYTES
    first = _first_bytes(params)
    config = getattr(ddp, "_bucket_config", None)
    if config is not None:
        ddp._bucket_config = dataclasses.replace(
            config, bucket_bytes_cap=cap, first_bucket_bytes_cap=first
        )
    ddp.bucket_bytes_cap = cap
    ddp.bucket_bytes_cap_default = first < cap
    setattr(ddp, _FIRST, first)


def _set_static(ddp: Any, *, is_static: bool) -> None:
    """Have the graph taken to be static, or not any more, unless the script has said that it is."""
    if is_static or getattr(ddp, _STATIC, False):
        ddp.static_graph = is_static
        setattr(ddp, _STATIC, is_static)


def _first_bytes(params: DdpParams) -> int:
    """Return the capacity of the first bucket: 1 MiB by default, else that of the others."""
    cap = params.bucket_cap_bytes or DEFAULT_BUCKET_CAP_BYTES
    usual = FIRST_BUCKET_BYTES if not params.bucket_cap_bytes else cap
    return min(params.first_bucket_bytes or usual, cap)


@contextmanager
def _first_bucket_of(params: DdpParams) -> Iterator[None]:
    """Let releases without ``_bucket_config``, where it is a constant, see the first bucket's."""
    usual = dist._DEFAULT_FIRST_BUCKET_BYTES
    dist._DEFAULT_FIRST_BUCKET_BYTES = _first_bytes(params)
    try:
        yield
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = usual


def _builtin_hook_name(ddp: Any) -> str:
    """Return the hook in C++ that the script has registered; only the logger knows it."""
    if ddp._comm_hooks or ddp.logger is None:
        return ""
    return str(ddp.logger._get_ddp_logging_data().strs_map.get("comm_hook", ""))


def _builtin_hook(name: str) -> Any:
    kinds = dist.BuiltinCommHookType.__members__.items()
    return next((kind for short, kind in kinds if name in (short, str(kind))), None)
