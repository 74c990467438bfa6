"""The native engine (csrc/bindings).

It holds no tensor of a script: callers keep those alive until release. Every function that can
block releases the GIL. ``wait`` looks for Python signals every 100 ms.
"""

from collections.abc import Callable, Sequence
from typing import Any

MESSAGE_FORMAT: int
"""Version of what ranks say to each other; the same on all ranks."""
IN_PLACE_BYTES: int
"""Tensors of this size and above are not copied into the fusion buffer (host memory)."""
PIECE_BYTES: int
"""An allreduce by messages goes in pieces of so much."""
SMALL_BYTES: int
"""Up to here an exchange takes one round of whole copies."""

class EngineError(RuntimeError):
    """An operation failed on all ranks, a rank died, or the engine was shut down."""

class InvalidRequest(ValueError):
    """The request was refused before negotiation: duplicate name, unknown root, bad count."""

class Params:
    """One setting of the communication parameters: a plain value; see autotune.trial."""

    def __init__(
        self,
        *,
        fusion_threshold_bytes: int,
        cycle_time_ms: float,
        cache_capacity: int,
        hierarchical_allreduce: bool,
        hierarchical_allgather: bool,
        nccl_algorithm: int = 0,
        nccl_protocol: int = 0,
        nccl_channels: int = 0,
        fp16_gradients: bool = False,
        bf16_gradients: bool = False,
    ) -> None: ...
    @staticmethod
    def fields() -> list[tuple[str, str, int | float | bool]]:
        """Return name, unit and default of every field; autotune.space has to say the same."""
    fusion_threshold_bytes: int
    cycle_time_ms: float
    cache_capacity: int
    hierarchical_allreduce: bool
    hierarchical_allgather: bool
    nccl_algorithm: int
    nccl_protocol: int
    nccl_channels: int
    fp16_gradients: bool
    bf16_gradients: bool

class Options:
    """Everything the engine is told once; csrc reads no environment variable."""

    params: Params
    rank: int
    size: int
    host_of_rank: list[int]
    host_names: list[str]
    """Number of each rank's host, counted from 0; ranks of one host can share memory."""
    thread_affinity: int
    """Core of the engine thread; -1: every core that the job may use."""
    stall_warning_seconds: float
    """0: no stall check."""
    stall_shutdown_seconds: float
    """0: never."""
    log_level: int
    """0 trace, 1 debug, 2 info, 3 warning, 4 error, 5 fatal."""
    timeline_path: str
    """File that is recorded from the start; "": none."""
    timeline_mark_cycles: bool
    disable_group_fusion: bool
    """Groups fuse only within themselves; must agree on all ranks."""
    connect_seconds: float
    """How long the ranks look for each other: whole seconds."""
    control_fan_out: int
    """As of ``control_parents``; must agree on all ranks."""
    timeline_clock: tuple[int, int, int, int]
    """Fields of horovod.common.timeline.Clock, in order."""
    def __init__(self) -> None: ...

class Rendezvous:
    """A rank that others report to listens here before they connect; ``address`` is for them.

    ``key``: 32 bytes that all ranks of the job have and that never travel on their connections.
    ``interfaces``: names of network interfaces, separated by commas, to whose addresses it is
    restricted; "": all. ``rank``: who listens. Raises EngineError where one of them is missing.
    """

    def __init__(self, key: bytes, interfaces: str = "", rank: int = 0) -> None: ...
    @property
    def address(self) -> str: ...

def control_parents(hosts: Sequence[int], fan_out: int = 0) -> list[int]:
    """**Local.** Return whom each rank reports to in negotiation; -1 for rank 0.

    Args:
        hosts: Number of each rank's host.
        fan_out: How many report to one; 0: the engine's choice, mostly that all report to rank 0.
    """

class Transport:
    """What moves the data of a job: messages between its ranks, for one rank of it.

    An engine keeps it alive. One engine at a time may use it.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

class MpiInterface:
    """What has to be known of an MPI library to call it (``horovod.common.mpi_library``)."""

    handle_bytes: int
    """Size of MPI_Comm, MPI_Datatype and MPI_Request: 4 or 8."""
    status_bytes: int
    error_text_bytes: int
    byte: int
    """MPI_BYTE, as ``mpi4py.MPI._handleof`` returns it."""
    no_request: int
    """MPI_REQUEST_NULL."""
    issend: int
    """Addresses of functions: MPI_Issend and so on."""
    irecv: int
    testall: int
    iprobe: int
    cancel: int
    error_string: int
    finalized: int

    def __init__(self) -> None: ...

def mpi_transport(
    interface: MpiInterface, comm: int, rank: int, size: int, far: Sequence[bool] = ()
) -> Transport:
    """**Local.** Return a transport over MPI.

    Args:
        interface: Of the library that made ``comm``.
        comm: MPI_Comm as an address (``mpi4py.MPI._handleof``), whose messages are all the
            transport's; it must return its errors, and not be freed while the transport lives.
        rank, size: The caller's rank in ``comm``, and its size.
        far: By rank, whether messages to and from it are cut into short ones. Two ranks say the
            same of each other.

    Raises:
        EngineError: The handles of ``interface`` have a size that no MPI has.
    """

class TcpListener:
    """Where a rank waits for the others' messages over TCP; ``address`` is for all of them.

    ``key`` and ``interfaces`` as of ``Rendezvous``. Raises EngineError.
    """

    def __init__(self, rank: int, key: bytes, interfaces: str = "") -> None: ...
    @property
    def address(self) -> str: ...
    def connect(
        self, addresses: Sequence[str], hosts: Sequence[int], seconds: float = 60.0
    ) -> Transport:
        """**Collective.** Connect all ranks and return the transport.

        Args:
            addresses: Of all ranks, by rank.
            hosts: Number of each rank's host, equal on all ranks.
            seconds: Whole ones.

        Raises EngineError when ranks do not connect within ``seconds``.
        """

class StepRecord:
    """Field for field autotune.service.protocol.StepRecord."""

    step: int
    count: int
    duration_us: float
    payload_bytes: int
    exposed_us: float
    epoch: int
    signature: int
    samples: int
    is_explicit: bool

class Kind:
    """What operations have in common that differ only in name, memory and shape."""

    def __init__(
        self,
        *,
        operation: str,
        dtype: str,
        reduce_op: str = "sum",
        root_rank: int = 0,
        prescale: float = 1.0,
        postscale: float = 1.0,
        named: bool = True,
        process_set: int = 0,
        on_device: bool = False,
        wire_type: str | None = None,
        may_compress: bool = False,
    ) -> None:
        """**Local.**

        Args:
            operation: "allreduce", "allgather", "broadcast", "barrier", "alltoall",
                "reducescatter" or "join".
            dtype: Name of the type as in torch without the prefix ("float32", "bfloat16", "bool").
            reduce_op: "average", "sum", "min", "max", "product" or "adasum" (on the CPU);
                reducescatter: "average" or "sum".
            root_rank: For broadcast: a global rank.
            prescale, postscale: Factors before and after the reduction.
            named: False for a generated name: never cached, and steps are found by their period.
            process_set: Id; 0 is the set of all ranks. Ignored by join.
            on_device: The tensors are in the memory of the GPU that ``use_device`` named.
            wire_type: Allreduce of float32: "float16" or "bfloat16", as which the tensors travel;
                None: as they are.
            may_compress: Allreduce of float32: they travel so where the parameters in force say it.
        """

class Prepared:
    """An operation that comes back in every step with other memory."""

    def __init__(self, kind: Kind, name: str, shape: Sequence[int]) -> None:
        """**Local.** As the arguments of ``Engine.start``."""

class PreparedAll:
    """Several of them."""

    def __init__(self, operations: Sequence[Prepared]) -> None:
        """**Local.**"""

class Places:
    """Where as many tensors lie."""

    def __init__(self, addresses: Sequence[int]) -> None:
        """**Local.**"""

class TensorReader:
    """Reads where tensors lie by DLPack's C exchange API, without a call into Python for each."""

    def __init__(self, api: object, types: Sequence[type]) -> None:
        """**Local.** Read tensors of exactly ``types``.

        Args:
            api: Their attribute ``__dlpack_c_exchange_api__``.
            types: The tensors' classes; subclasses are not read.

        Raises ValueError: another kind or version of the API.
        """

    def find(self, operation: Prepared, tensor: object, device: int) -> int | None:
        """**Local.** Return the address of a tensor that is as ``operation`` says: type, shape,
        dense, on GPU ``device`` (-1: in the host's memory). None: it is not, or is unreadable."""

    def find_all(
        self,
        operations: PreparedAll,
        tensors: list[Any],
        device: int,
        *,
        as_they_lie: bool = False,
    ) -> Places | None:
        """**Local.** ``find`` for as many tensors; None when one of them does not fit.

        Args:
            operations: What they have to be like.
            tensors: Anything.
            device: As of ``find``.
            as_they_lie: A tensor (n, c, h, w) or (n, c, d, h, w) whose channels are innermost in
                memory fits an operation of shape (n, d * h * w, c).
        """

class Runner:
    """Starts one prepared operation, or does it at once, again and again."""

    def __init__(
        self, engine: Engine, reader: TensorReader, operation: Prepared, device: int
    ) -> None:
        """**Local.** For tensors of GPU ``device``; -1: of the CPU."""

    @property
    def pending(self) -> int:
        """**Local.** Handle of an operation whose wait was interrupted; -1: there is none."""

    def start(self, input: object, output: object, stream: int) -> int | None:
        """**Collective.** ``start_prepared``. None: one of the tensors is not like those it was
        prepared for, and nothing has happened."""

    def run(self, input: object, output: object, stream: int) -> bool:
        """**Collective.** ``start`` and ``finish_all``. False: as None of ``start``."""

class Engine:
    def __init__(
        self,
        options: Options,
        rendezvous: Rendezvous | None,
        address: str,
        key: bytes,
        transport: Transport | None = None,
    ) -> None:
        """**Collective.** Connect all ranks, start the engine thread.

        ``rendezvous``: of a rank that others report to (``control_parents``); ``address``: of the
        one that this rank reports to.
        ``key`` is that of the rendezvous. Who does not have it is no rank. ``transport``: of this
        rank; None with size 1.
        Raises EngineError when a rank does not connect in ``connect_seconds``; InvalidRequest when
        the transport is of another rank or size than the options.
        """

    def use_device(
        self,
        index: int,
        nccl: str,
        nvrtc: str,
        allocate: Callable[[int, int], tuple[int, object] | None],
        host_id: str = "",
        nccl_tuner: str = "",
    ) -> None:
        """**Local.** From now on this rank communicates tensors of GPU ``index``, too.

        Args:
            index: As CUDA numbers the GPUs of this process.
            nccl, nvrtc: Paths of the libraries; "": where the loader finds them.
            allocate: Returns, for a number of bytes and a stream, the address of memory that is
                used in that stream, and the object that keeps it; None: there is none. A thread of
                the engine calls it.

        Raises InvalidRequest when it uses another GPU; EngineError when something is missing.
        """

    @property
    def has_device(self) -> bool:
        """**Local.** Whether ``use_device`` was called."""

    @property
    def device_stream(self) -> int:
        """**Local.** The stream in which the engine reads and writes tensors of the GPU."""

    def start(
        self,
        kind: Kind,
        name: str,
        input: int,
        output: int,
        shape: Sequence[int],
        stream: int = 0,
        splits: Sequence[int] = (),
    ) -> int:
        """**Local.** Hand an operation to the engine and return its handle.

        Args:
            kind: What it is.
            name: Unique among the operations in flight in the process set.
            input, output: Addresses; equal for in place; output 0 for allgather, alltoall and
                reducescatter (see ``result`` and ``take_result``). The memory must live until
                ``release``, on a GPU until what ``order`` says.
            shape: Shape of the input, in elements; () for barrier and join.
            stream: GPU: the input is there when this stream (a cudaStream_t) has done what it has.
            splits: For alltoall: rows of the first dimension for each rank of the set, in order
                (rows beyond their sum are not sent); () cuts it into equal parts.

        Raises InvalidRequest, and nothing is in flight then: a name that is in flight; an unknown
        process set, this rank or the root not in it; bad splits; reducescatter of a scalar or with
        another reduce_op; adasum of integers or in a set whose size is no power of two; join while
        this rank has joined; a stream that is being captured. Raises EngineError: shut down, dead
        rank.

        While a rank has joined, it contributes zeros to allreduce (whose average still divides by
        the size of the set; min, max and product see the zeros, too); allgather, broadcast,
        alltoall and reducescatter fail on the other ranks, barrier does not wait for it.
        """

    def start_prepared(self, operation: Prepared, input: int, output: int, stream: int = 0) -> int:
        """**Local.** As ``start``, in a fraction of its time."""

    def start_all(
        self,
        operations: PreparedAll,
        inputs: Places,
        outputs: Places,
        stream: int = 0,
    ) -> int:
        """**Local.** As ``start`` for several operations: one handle each. The handles are
        consecutive numbers, of which the first is returned. All or none are taken, and they are
        announced together.

        Args:
            operations: What is to be done.
            inputs, outputs: As many as operations.
            stream: As in ``start``.
        """

    def start_group(
        self,
        operations: PreparedAll,
        inputs: Places,
        outputs: Places,
        stream: int = 0,
    ) -> int:
        """**Local.** As ``start_all``. They fuse like any others; with
        Options.disable_group_fusion the members of a group fuse among themselves only."""

    def finish_all(self, first: int, count: int, stream: int = 0) -> None:
        """**Local.** ``wait``, ``order`` and ``release`` for ``count`` consecutive handles; all are
        finished when one has failed, whose EngineError is raised, the first one."""

    def order(self, handle: int, stream: int) -> None:
        """**Local.** GPU: what ``stream`` does from now on comes after the operation, which is
        complete. Nothing happens for an operation on the CPU."""

    def take_result(self, handle: int, stream: int) -> Any:
        """**Local.** GPU: ``order``, and return what keeps the memory of the result of an
        allgather, alltoall or reducescatter, as ``allocate`` of ``use_device`` gave it; once. None:
        the result is empty."""

    def result_shape(self, handle: int) -> list[int]:
        """**Local.** Shape of the result of a complete allgather, alltoall or reducescatter."""

    def poll(self, handle: int) -> bool:
        """**Local.** True when the operation is complete (or failed or released), on a GPU also
        there."""

    def wait(self, handle: int) -> None:
        """**Local.** Return when the operation is complete; raises EngineError if it failed.

        On a GPU it is complete when all of it is in the engine's stream.
        """

    def result(self, handle: int) -> tuple[memoryview, list[int]]:
        """**Local.** Output bytes and shape of a complete allgather, alltoall or reducescatter;
        valid until ``release`` or while the memoryview lives."""

    def received_splits(self, handle: int) -> list[int]:
        """**Local.** Rows that a complete alltoall received from each rank of the set."""

    def joined_rank(self, handle: int) -> int:
        """**Local.** The global rank that joined last, of a complete join."""

    def release(self, handle: int) -> None:
        """**Local.** Forget a complete handle."""

    def add_process_set(self, ranks: Sequence[int]) -> int:
        """**Collective over all ranks.** Make a process set of these global ranks (their order
        does not matter); returns a handle, see ``process_set_id``.

        Raises InvalidRequest: no ranks, one twice, no such rank, or a set of the same ranks exists.
        The operation fails on all ranks (EngineError) when they ask for different ranks, or while
        a rank has joined.
        """

    def remove_process_set(self, process_set: int) -> int:
        """**Collective over all ranks.** Forget a process set; returns a handle.

        Raises InvalidRequest: no such set, or 0. The operation fails on all ranks while operations
        of the set are in flight, when the ranks name different sets, or while a rank has joined.
        """

    def process_set_id(self, handle: int) -> int:
        """**Local.** Id of the set that a complete ``add_process_set`` made (or the other one
        removed). Ids count up from 1 and never come again."""

    def process_sets(self) -> dict[int, list[int]]:
        """**Local.** Sorted global ranks of every process set by its id; 0 is all ranks."""

    def end_step(self, explicit: bool = True) -> bool:
        """**Local.** A training step ended on this rank; True when ``drain_steps`` is worth it."""

    def drain_steps(self) -> tuple[list[StepRecord], list[tuple[int, list[tuple[str, int]]]]]:
        """**Local.** Steps finished since the last call, and signatures not reported before."""

    def pause_steps(self, paused: bool) -> None:
        """**Local.** While paused, steps are recorded with signature 0 (never scored)."""

    def add_samples(self, count: int) -> None:
        """**Local.** The training step in progress is of ``count`` samples more."""

    def drain_checks(self) -> list[tuple[int, str, bool, float, str]]:
        """**Rank 0 only.** Results that were checked since the last call: (epoch, name, whether
        it was right on all ranks, worst error in units of the tolerance, ""), and operations that
        the setting does not suit: (epoch, name, False, -1, why).

        In the first training step of every epoch one allreduce, another one each time, is repeated
        in the plainest way and compared.
        """

    def propose(self, epoch: int, params: Params) -> None:
        """**Rank 0 only.** Change the parameters on all ranks between two training steps."""

    def start_timeline(self, path: str, mark_cycles: bool = False) -> None:
        """**Local.** Record to ``path`` from now on. Raises InvalidRequest: cannot be written."""

    def stop_timeline(self) -> None:
        """**Local.** The file is complete when this returns."""

    def backward(self, begins: bool) -> None:
        """**Local.** The backward pass begins (with its first gradient) or ends."""

    def params(self) -> Params:
        """**Local.** The parameters in force on this rank."""

    def epoch(self) -> int:
        """**Local.** The epoch in force on this rank."""

    def counters(self) -> dict[str, int]:
        """**Local.** Monotonic counters: operations, responses, cycles, messages, cache_hits,
        cache_misses, payload_bytes, fused_tensors; and times in ns: pack, transfer, unpack (of
        which waiting for late ranks inside a transfer is a part), protocol (negotiating: encoding,
        sockets, planning), skew (on rank 0: announced by some ranks, waiting for the last one),
        wait (the training thread waited for a handle)."""

    def abort(self, reason: str) -> None:
        """**Local**, from any thread. End this engine by an error, and what is in flight with it:
        somebody knows that a rank is gone. Never waits; an engine that has ended stays as it is."""

    def shutdown(self, timeout_seconds: float = 30.0) -> None:
        """**Collective in spirit.** One rank's shutdown ends all engines; pending work fails."""

    @property
    def failed(self) -> bool:
        """True after a fatal error (a dead rank): MPI must not be finalised."""

def nccl_version(path: str) -> int:
    """Version of the NCCL at ``path`` ("": where the loader finds it), or 0 without one."""

def cuda_version() -> int:
    """Newest CUDA version that NVIDIA's driver knows, or 0 without a driver."""

def abi() -> int:
    """**Local.** Return the address of the C ABI's table (csrc/bindings/abi.h), for libraries of
    other front ends. It serves the engine that was made last."""

def messages_were_left_behind() -> bool:
    """Return whether MPI may still deliver messages of an operation that failed."""
