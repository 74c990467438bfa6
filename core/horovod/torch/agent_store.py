"""The store of torchrun's agent, in which its ranks may leave each other small values."""

from __future__ import annotations

import datetime

from horovod.common.joining import Store


def open_store(host: str, port: int, seconds: float) -> Store:
    """**Local.** Connect to the store at ``host``; a value is waited for at most ``seconds``.

    Raises:
        RuntimeError: Nothing listens there.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store: Store = TCPStore(
        host,
        port,
        is_master=False,
        wait_for_workers=False,
        timeout=datetime.timedelta(seconds=seconds),
    )
    return store
