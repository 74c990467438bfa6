"""What a job keeps while ranks come and go: committed in this process's memory, alike on all ranks.

``ObjectState`` keeps plain Python objects. States of a framework add what they know to copy without
pickling (``horovod.torch.elastic.state``).
"""

from __future__ import annotations

import copy
import pickle
import queue
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]

from horovod.common import rounds
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.elastic.agreement import News
from horovod.elastic.notifications import HostUpdateResult
from horovod.elastic.termination import Terminated, termination

Broadcast = Callable[[Any], Any]


class State:
    """The state of a training function; see ``ObjectState`` for one that keeps something.

    Args:
        bcast_object: **Collective.** Returns rank 0's argument on all ranks.
        get_rank: Returns the rank of this process.
    """

    _commit_number = 0
    """Of the last commit of the job."""

    def __init__(self, bcast_object: Broadcast, get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._is_saved = False

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """**Local**, every rank alike. Call ``callbacks`` whenever the ranks have changed.

        They are called after ``hvd.size()`` and ``hvd.rank()`` have changed and before the ranks
        take over rank 0's state, e.g. to scale the learning rate.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """**Local.** The ranks have changed: forget earlier news, ``reset``, call the callbacks."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """**Local.** Take note of a change of the hosts; any thread may call it.

        Args:
            timestamp: When it was seen, in seconds.
            update_res: A ``HostUpdateResult``.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """**Collective.** Save the state, then ``check_host_updates``.

        A job that loses a rank goes back to its last commit. Rare commits are cheap, and lose more.

        Raises:
            HostsUpdatedInterrupt, HorovodInternalError, SystemExit: As ``check_host_updates``.
        """
        self.save()
        self._commit_number += 1
        self._is_saved = True
        try:
            self.check_host_updates()
        finally:
            self._is_saved = False

    def check_host_updates(self) -> None:
        """**Collective.** End the function where hosts have changed, or the job was told to end.

        What some rank knows decides, so that all ranks end at the same place. To be called between
        two steps.

        Raises:
            HostsUpdatedInterrupt: Hosts have come or gone; the loop goes on with the new ranks.
            SystemExit: The job was told to end (SIGTERM): all ranks have saved, and end.
            HorovodInternalError: A rank has died.
        """
        newest, kinds = self._last_updated_timestamp, HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, kind = self._host_messages.get()
            if timestamp > self._last_updated_timestamp:
                newest, kinds = max(newest, timestamp), kinds | kind
        news = News(
            timestamp=newest,
            kinds=kinds,
            is_new=newest > self._last_updated_timestamp,
            terminates=termination.is_requested,
        ).agree()
        self._last_updated_timestamp = news.timestamp
        if self._is_saved:
            rounds.committed()  # all ranks have
        if news.terminates:
            if not self._is_saved:
                self.save()
                self._commit_number += 1
            raise Terminated
        if news.is_new:
            raise HostsUpdatedInterrupt(news.kinds == HostUpdateResult.removed)

    def save(self) -> None:
        """**Local.** Keep the state as it is now in host memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """**Local.** Go back to the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """**Collective.** Take over rank 0's state."""
        raise NotImplementedError

    def reset(self) -> None:
        """**Local.** Adapt what depends on the ranks; they have changed."""

    def saved_content(self) -> Mapping[str, Any]:
        """**Local.** Return what was saved last as plain values, arrays and bytes, for a file.

        Raises:
            NotImplementedError: A state of this class cannot be written.
        """
        raise NotImplementedError(
            f"a state of {type(self).__name__} cannot be kept in a file: it has no saved_content()"
        )

    def load_content(self, content: Mapping[str, Any]) -> None:
        """**Local.** Take over, and save, what ``saved_content`` has returned in another job.

        Raises:
            ValueError: It does not fit this state.
        """
        raise NotImplementedError(
            f"a state of {type(self).__name__} cannot be read from a file: it has no load_content()"
        )


class ObjectState(State):
    """A state of plain Python objects, each an attribute.

    What is saved is a copy (``copy.deepcopy``), so that lists and dictionaries may be changed in
    place; an object that cannot be copied is kept itself.

    Args:
        bcast_object: As of ``State``.
        get_rank: As of ``State``.
        **kwargs: {attribute: first value}. Further attributes are not part of the state.
    """

    def __init__(self, bcast_object: Broadcast, get_rank: Callable[[], int], **kwargs: Any) -> None:
        self._saved_state: dict[str, Any] = {}
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved_state = {name: copied(value) for name, value in kwargs.items()}

    def save(self) -> None:
        """**Local.** As of ``State``."""
        with termination.held():
            self._save()

    def restore(self) -> None:
        """**Local.** As of ``State``."""
        self._set_attrs()

    def sync(self) -> None:
        """**Collective.** Take over rank 0's attributes, and save them.

        Raises:
            ValueError: Rank 0's cannot be sent; the same error on every rank.
            HorovodInternalError: A rank has died.
        """
        if self._saved_state:
            is_root = self._rank() == 0
            own = {name: getattr(self, name) for name in self._saved_state} if is_root else {}
            packed = self._bcast_object(_pack(own))
            if packed.error:
                raise ValueError(packed.error)
            if not is_root:
                for name, value in _unpack(packed).items():
                    setattr(self, name, value)
        self.save()

    def saved_content(self) -> Mapping[str, Any]:
        """**Local.** As of ``State``."""
        packed = _pack(self._saved_state)
        if packed.error:
            raise ValueError(packed.error)
        return {"objects": packed.values}

    def load_content(self, content: Mapping[str, Any]) -> None:
        """**Local.** As of ``State``."""
        objects = content["objects"]
        expect_names(self._saved_state, objects)
        for name, value in _unpack(_Packed(objects)).items():
            setattr(self, name, value)
        self.save()

    def _save(self) -> None:
        self._saved_state = {name: copied(getattr(self, name)) for name in self._saved_state}

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, copied(value))


def copied(value: Any) -> Any:
    """**Local.** Return a copy of ``value``; where there can be none, ``value`` itself."""
    try:
        return copy.deepcopy(value)
    except Exception:  # whatever the object's own code raises
        return value


def expect_names(ours: Iterable[str], theirs: Iterable[str]) -> None:
    """**Local.** Raise a ValueError where a file's state has other attributes than ours."""
    missing, unknown = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
    if missing or unknown:
        raise ValueError(
            f"expected the attributes {', '.join(sorted(ours))}; it lacks "
            f"{', '.join(missing) or 'none'} and has {', '.join(unknown) or 'none'} besides"
        )


class _Packed(NamedTuple):
    """Attributes in bytes, or why not."""

    values: Mapping[str, bytes]
    error: str = ""


def _pack(objects: Mapping[str, Any]) -> _Packed:
    packed = {}
    for name, value in objects.items():
        try:
            packed[name] = cloudpickle.dumps(value)
        except Exception as error:  # whatever the object's own code raises
            return _Packed(
                {},
                f"the state's attribute {name!r} ({type(value).__name__}) cannot be pickled, so "
                f"ranks that join cannot have it: {error}",
            )
    return _Packed(packed)


def _unpack(packed: _Packed) -> dict[str, Any]:
    return {name: pickle.loads(data) for name, data in packed.values.items()}
