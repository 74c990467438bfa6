"""The user's secret: never shown, never sent, and a part of the job's key."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from horovod.common import secret
from horovod.common.settings import RankReport, find_error
from horovod.tuning.settings import read_settings

TEXT = "correct horse battery staple"


@dataclass
class Broadcast:
    """The ranks of a job, one after the other."""

    rank: int
    carried: bytes = b""

    def bcast(self, value: bytes) -> bytes:
        if self.rank == 0:
            self.carried = value
        return self.carried


def keys(*secrets: secret.Secret | None) -> list[bytes]:
    comm: Any = Broadcast(0)
    found = []
    for comm.rank, each in enumerate(secrets):
        found.append(secret.job_key(comm, each))
    return found


def test_every_job_has_a_key_of_its_own_that_all_ranks_have() -> None:
    first, second = keys(None, None)
    assert first == second
    assert len(first) == 32
    assert keys(None)[0] != first


def test_a_secret_makes_what_mpi_carries_worthless_without_it() -> None:
    comm: Any = Broadcast(0)
    key = secret.job_key(comm, secret.parse(TEXT))
    assert key == hmac.digest(TEXT.encode(), comm.carried, hashlib.sha256)
    one, other = keys(secret.parse(TEXT), secret.parse(TEXT + "!"))
    assert one != other


def test_a_secret_that_can_be_guessed_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match=r"HOROVOD_SECRET_KEY: expected at least 16.*got 6") as bad:
        read_settings({"HOROVOD_SECRET_KEY": "123456"})
    assert "123456" not in str(bad.value)


def test_ranks_with_different_secrets_learn_it_without_seeing_one() -> None:
    environs = [{"HOROVOD_SECRET_KEY": TEXT}, {"HOROVOD_SECRET_KEY": TEXT * 2}, {}]
    reports = [RankReport(read_settings(environ).to_agree) for environ in environs]
    assert TEXT.encode() not in pickle.dumps(reports)
    error = find_error(reports)
    assert error is not None
    assert "HOROVOD_SECRET_KEY must be the same on all ranks: got a key " in error
    assert "unset on rank 2" in error
    assert "unencrypted" in error
    assert "mpirun -x" not in error
    assert TEXT not in error
    assert find_error([reports[0], reports[0]]) is None


def test_a_secret_has_no_text_in_what_is_printed_of_it() -> None:
    settings = read_settings({"HOROVOD_SECRET_KEY": TEXT})
    assert TEXT not in repr(settings)
    assert TEXT not in str(settings["HOROVOD_SECRET_KEY"])
