"""Horovod's path of elastic states and their loop; it is ``horovod.elastic`` that has them."""

from __future__ import annotations

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.elastic.loop import run_fn
from horovod.elastic.notifications import (
    HostUpdateResult,
    NotificationManager,
    notification_manager,
)
from horovod.elastic.state import ObjectState, State

WorkerNotificationManager = NotificationManager
"""Horovod's name of the class."""

__all__ = [
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "WorkerNotificationManager",
    "notification_manager",
    "run_fn",
]
