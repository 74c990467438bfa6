"""The loop around an elastic function: what ends the function decides how it goes on.

One process without ``hvd.init``; ``reset`` and states that write down what is asked of them.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("horovod._engine")

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.elastic.checkpoint import Checkpoint
from horovod.elastic.loop import _survivors, run_fn
from horovod.elastic.notifications import HostUpdateResult, notification_manager
from horovod.elastic.state import ObjectState, State

Script = list[BaseException | None]


class Recorded(ObjectState):
    """A state that writes down what the loop does with it."""

    def __init__(self, **kwargs: Any) -> None:
        self.done: list[str] = []
        super().__init__(lambda value: value, lambda: 0, **kwargs)

    def sync(self) -> None:
        self.done.append("sync")
        super().sync()

    def restore(self) -> None:
        self.done.append("restore")
        super().restore()

    def on_reset(self) -> None:
        self.done.append("on_reset")
        super().on_reset()


def play(state: Recorded, *ends: BaseException | None) -> object:
    """Run a function that ends by one of ``ends`` each time; None: it returns."""
    remaining = list(ends)

    def train(state: Recorded) -> str:
        state.done.append("train")
        end = remaining.pop(0)
        if end is not None:
            raise end
        return "result"

    return run_fn(train, lambda: state.done.append("reset"))(state)


def test_a_function_that_returns_is_called_once_with_rank_0s_state() -> None:
    state = Recorded()
    assert play(state, None) == "result"
    assert state.done == ["sync", "train"]


def test_a_failure_goes_back_to_the_last_commit_and_takes_over_rank_0s() -> None:
    state = Recorded()
    assert play(state, HorovodInternalError("lost"), None) == "result"
    again = ["reset", "restore", "on_reset", "sync", "train"]
    assert state.done == ["sync", "train", *again]


def test_new_hosts_take_nothing_back() -> None:
    state = Recorded()
    play(state, HostsUpdatedInterrupt(False), None)
    assert state.done == ["sync", "train", "reset", "on_reset", "sync", "train"]


def test_after_a_failure_in_a_reset_the_ranks_meet_once_more() -> None:
    state, resets = Recorded(), iter([HorovodInternalError("again"), None])
    calls = iter([HorovodInternalError("lost"), None])

    def reset() -> None:
        state.done.append("reset")
        error = next(resets)
        if error is not None:
            raise error

    def train(state: Recorded) -> None:
        error = next(calls)
        if error is not None:
            raise error

    run_fn(train, reset)(state)
    assert state.done == ["sync", "reset", "reset", "restore", "on_reset", "sync"]


def test_the_same_failure_twice_without_a_commit_is_raised() -> None:
    mismatch = "allreduce 'x' failed: expected shape [2] (rank 0 of 2)"
    state = Recorded()
    with pytest.raises(HorovodInternalError, match="expected shape"):
        play(state, HorovodInternalError(mismatch), HorovodInternalError(mismatch), None)
    assert state.done.count("train") == 2


@pytest.mark.parametrize(
    "text", ["the engine was shut down: rank 1 shut down after 3 operations", "a", "b"]
)
def test_other_failures_and_ranks_that_leave_are_not_counted(text: str) -> None:
    texts = [text] * 3 if "shut down" in text else ["a", "b", "a"]
    assert play(Recorded(), *map(HorovodInternalError, texts), None) == "result"


def test_the_same_failure_with_a_commit_between_goes_on() -> None:
    state, calls = Recorded(), iter([True, True, True, False])

    def train(state: Recorded) -> str:
        state.commit()
        if next(calls):
            raise HorovodInternalError("the same")
        return "result"

    assert run_fn(train, lambda: None)(state) == "result"


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_other_errors_are_the_callers(error: BaseException) -> None:
    state = Recorded()
    with pytest.raises(type(error)):
        play(state, error)
    assert state.done == ["sync", "train"]


def test_an_error_of_a_reset_callback_is_the_callers() -> None:
    def wrong() -> None:
        raise ZeroDivisionError

    state = Recorded()
    state.register_reset_callbacks([wrong])
    with pytest.raises(ZeroDivisionError):
        play(state, HorovodInternalError("lost"), None)


def test_callbacks_see_what_was_restored_and_what_they_set_is_kept() -> None:
    state = Recorded(rate=1.0)

    def train(state: Recorded) -> float:
        if "restore" in state.done:
            return float(state.rate)
        state.rate = 7.0
        raise HorovodInternalError("lost")

    def double() -> None:
        state.rate *= 2

    state.register_reset_callbacks([double])
    assert run_fn(train, lambda: None)(state) == 2.0


def test_a_state_hears_of_hosts_while_its_function_runs_and_no_longer() -> None:
    state, heard = Recorded(), []

    def train(state: Recorded) -> None:
        notification_manager.handle_hosts_updated(5.0, HostUpdateResult.added)
        heard.append(state._host_messages.qsize())

    run_fn(train, lambda: None)(state)
    notification_manager.handle_hosts_updated(6.0, HostUpdateResult.added)
    assert heard == [1]
    assert state._host_messages.qsize() == 1


def test_arguments_and_the_name_are_the_functions() -> None:
    def train(state: State, first: int, *, second: int) -> tuple[int, int]:
        """Train."""
        return first, second

    wrapped = run_fn(train, lambda: None)
    assert (wrapped.__name__, wrapped.__doc__) == ("train", "Train.")
    assert wrapped(Recorded(), 1, second=2) == (1, 2)


@pytest.mark.parametrize(
    ("error", "survivor"),
    [
        ("rank 1 on a ended its process (seen on rank 0 of 3); look", 0),
        ("rank 0 on a ended its process or lost its connection (seen on rank 2 of 3)", 1),
        ("no sign of life from the host of rank 0 on a, rank 1 on a for 15 s (seen on rank 2)", 2),
        ("rank 0 (seen by rank 2) has ended its process or its connections", 1),
        ("what nobody understands", 0),
    ],
)
def test_the_first_rank_that_is_left_is_found_in_the_error(error: str, survivor: int) -> None:
    assert _survivors(error, 3)[0] == survivor
    assert sorted(_survivors(error, 3)) == [0, 1, 2]


# --- SIGTERM and the file --------------------------------------------------------------------


def counting(stop_at: int, told: Callable[[], object]) -> Callable[[ObjectState], int]:
    """Return a function that counts to 10 and commits each number; ``told()`` at ``stop_at``."""

    def count(state: ObjectState) -> int:
        while state.number < 10:
            if state.number == stop_at:
                told()
            state.number += 1
            state.commit()
        return int(state.number)

    return count


def signal_us() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def state_of(**kwargs: Any) -> ObjectState:
    return ObjectState(lambda value: value, lambda: 0, **kwargs)


def test_sigterm_ends_the_function_at_the_next_commit_and_the_next_job_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "state"
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        run_fn(counting(3, signal_us), lambda: None, file)(state_of(number=0))
    assert end.value.code == 75
    assert signal.getsignal(signal.SIGTERM) is before
    assert f"commit 4 is in {file}; exit code 75" in caplog.text
    next_one = state_of(number=0)
    seen: list[int] = []
    run_fn(counting(4, lambda: seen.append(4)), lambda: None, file)(next_one)
    assert seen == [4]  # it began there
    assert "goes on from commit 4" in caplog.text
    assert not file.exists()
    assert file.with_name("state.done").exists()


def test_the_variable_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC_CHECKPOINT", str(tmp_path / "state"))
    with pytest.raises(SystemExit):
        run_fn(counting(3, signal_us), lambda: None)(state_of(number=0))
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_without_a_file_the_end_says_what_would_have_kept_the_commit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(SystemExit):
        run_fn(counting(3, signal_us), lambda: None)(state_of(number=0))
    assert "commit 4 is lost with this job: HOROVOD_ELASTIC_CHECKPOINT=FILE" in caplog.text


def test_sigterm_between_commits_commits_where_hosts_are_asked_for(tmp_path: Path) -> None:
    def train(state: ObjectState) -> None:
        signal_us()
        state.number = 8
        state.check_host_updates()

    with pytest.raises(SystemExit):
        run_fn(train, lambda: None, tmp_path / "state")(state_of(number=0))
    assert number_in(tmp_path / "state", train) == 8


def test_a_scripts_own_handler_is_called_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def own(number: int, frame: object) -> None:
        calls.append(number)

    before = signal.signal(signal.SIGTERM, own)
    try:
        with pytest.raises(SystemExit):
            run_fn(counting(3, signal_us), lambda: None)(state_of(number=0))
        assert calls == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_handler_that_the_function_sets_stays() -> None:
    def train(state: ObjectState) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    before = signal.getsignal(signal.SIGTERM)
    try:
        run_fn(train, lambda: None)(state_of())
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread_the_signal_keeps_its_meaning() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def train(state: ObjectState) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run_fn(train, lambda: None), args=(state_of(),))
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_forked_child_ends_by_sigterm_as_without_us() -> None:
    ends: list[int] = []

    def train(state: ObjectState) -> None:
        child = os.fork()
        if child == 0:
            signal_us()
            os._exit(0)  # it was swallowed
        ends.append(os.waitpid(child, 0)[1])

    run_fn(train, lambda: None)(state_of())
    assert [os.WTERMSIG(end) for end in ends] == [signal.SIGTERM]


def test_sigterm_while_the_ranks_meet_ends_with_the_last_commit(tmp_path: Path) -> None:
    def train(state: ObjectState) -> None:
        state.number = 5
        state.commit()
        state.number = 6
        raise HorovodInternalError("lost")

    def reset() -> None:
        signal_us()
        raise AssertionError("a wait that would have lasted")

    with pytest.raises(SystemExit) as end:
        run_fn(train, reset, tmp_path / "state")(state_of(number=0))
    assert end.value.code == 75
    assert number_in(tmp_path / "state", train) == 5


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 something else", "is no state of an elastic job"),
        (b"hvd-autotune elastic state 2\n", "was written by another version"),
        (b"hvd-autotune elastic state 1\n{}\n", "is damaged in its second line"),
    ],
)
def test_a_file_of_something_else_ends_the_job_in_one_sentence_and_is_left_alone(
    tmp_path: Path, content: bytes, why: str
) -> None:
    file = tmp_path / "state"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=f"{file} {why}; it is left as it is"):
        run_fn(lambda state: None, lambda: None, file)(state_of(number=0))
    assert file.read_bytes() == content


def test_a_file_of_which_a_part_is_missing_is_not_taken_for_a_state(tmp_path: Path) -> None:
    file = written(tmp_path)
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"it is left as it is"):
            run_fn(lambda state: None, lambda: None, file)(state_of(number=0))
        assert file.read_bytes() == whole[:length]


def test_a_file_in_which_something_has_changed_is_not_taken_for_a_state(tmp_path: Path) -> None:
    file = written(tmp_path)
    whole = bytearray(file.read_bytes())
    start = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    for place in range(start, len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(ValueError, match=r"is damaged|is not whole"):
            run_fn(counting(0, lambda: None), lambda: None, file)(state_of(number=0))


def test_a_state_with_other_attributes_does_not_fit(tmp_path: Path) -> None:
    file = written(tmp_path)
    with pytest.raises(ValueError, match="expected the attributes epoch; it lacks epoch and has"):
        run_fn(counting(0, lambda: None), lambda: None, file)(state_of(epoch=0))
    assert file.exists()


def test_a_file_of_another_function_is_left_alone(tmp_path: Path) -> None:
    file = written(tmp_path)
    with pytest.raises(ValueError, match=r"is of the function .*count, not .*lambda"):
        run_fn(lambda state: None, lambda: None, file)(state_of(number=0))


def test_a_place_that_cannot_be_written_is_known_at_the_start(tmp_path: Path) -> None:
    for file, why in ((tmp_path / "no" / "state", "there is no folder"), (tmp_path, "is a folder")):
        with pytest.raises(ValueError, match=why):
            run_fn(lambda state: None, lambda: None, file)(state_of(number=0))


def test_a_state_that_cannot_be_written_is_known_at_the_start(tmp_path: Path) -> None:
    class Own(State):
        def sync(self) -> None:
            """There is nothing to take over."""

    own = Own(lambda value: value, lambda: 0)
    with pytest.raises(ValueError, match="a state of Own cannot be kept in a file"):
        run_fn(lambda state: None, lambda: None, tmp_path / "state")(own)
    with pytest.raises(ValueError, match=r"attribute 'lock' .* cannot be pickled"):
        state = state_of(lock=threading.Lock())
        run_fn(lambda state: None, lambda: None, tmp_path / "state")(state)


def number_in(file: Path, function: Callable[..., object]) -> int:
    found = Checkpoint(file).read(function.__name__)
    assert found is not None
    return int(pickle.loads(found[1]["objects"]["number"]))


def written(folder: Path) -> Path:
    """Return the file that ``counting`` has left."""
    file = folder / "state"
    with pytest.raises(SystemExit):
        run_fn(counting(3, signal_us), lambda: None, file)(state_of(number=0))
    return file
