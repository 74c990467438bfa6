"""Lines between the runtime and the service: each is a message again, or a clear error."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import ProtocolError
from autotune.service import protocol
from autotune.service.protocol import decode, encode
from autotune.trial import CommParams

DEFAULT = CommParams().as_dict()
RECORD = protocol.StepRecord(
    step=3, count=1, duration_us=1.5, payload_bytes=8, exposed_us=0.0, epoch=-1, signature=-7
)
MESSAGES: list[protocol.Message] = [
    protocol.Hello(
        settings=protocol.TunerSettings(noise=0.1, seed=3),
        fixed={"cache_capacity": 5},
        inert={"hierarchical_allreduce": "one host"},
        size=2,
        local_size=2,
        cross_size=1,
        versions={"mpi": "5"},
        check=DEFAULT,
        host="node1",
        pid=1,
    ),
    protocol.Inert(reasons={"bf16_gradients": "the module has a hook of its own"}),
    protocol.Signature(signature=-(2**63), operations=(("allreduce", 8), ("cuda broadcast", 0))),
    protocol.Steps(records=(RECORD, RECORD)),
    protocol.Steps(records=()),
    protocol.ResultCheck(epoch=1, name="a", ok=False, worst_error=float("inf")),
    protocol.Finish(),
    protocol.Ready(lines=("a line",)),
    protocol.Refused(message="why"),
    protocol.Apply(epoch=1, params=DEFAULT, incumbent=DEFAULT, limit_us=2.5),
    protocol.Line(text="\N{GREEK SMALL LETTER MU}s"),
    protocol.Progress(text="50 %"),
    protocol.Done(epoch=2, params=DEFAULT, certified=True, text="done"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_every_message_is_the_same_after_its_line(message: protocol.Message) -> None:
    assert decode(encode(message)) == message


def test_every_kind_of_message_is_tried() -> None:
    assert {type(each) for each in MESSAGES} == set(protocol._TYPES.values())


@settings(max_examples=50)
@given(line=st.binary(max_size=80) | JSON.map(json.dumps))
def test_any_line_is_a_message_or_a_protocol_error(line: bytes | str) -> None:
    with pytest.raises(ProtocolError, match="not a message of protocol"):
        decode(line)


@given(message=st.sampled_from(MESSAGES), data=st.data(), value=JSON)
def test_a_field_of_another_type_is_an_error_that_names_the_protocol(
    message: protocol.Message, data: st.DataObject, value: Any
) -> None:
    content = json.loads(encode(message))
    content[data.draw(st.sampled_from(sorted(content)))] = value
    try:
        again = decode(json.dumps(content))
    except ProtocolError:
        return
    assert decode(encode(again)) == again or "NaN" in json.dumps(content)


def test_thousands_of_damaged_lines_are_messages_or_protocol_errors() -> None:
    rng = random.Random(1)
    for _ in range(5_000):
        line = bytearray(encode(rng.choice(MESSAGES)))
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(line))
            line[place : place + rng.choice((0, 1, 1, 9))] = rng.choice(
                (b"", b"9", b"-", b"[", b"}", b"null", b'"', b"1e999", b"\xff", b"9" * 5000)
            )
        try:
            encode(decode(bytes(line)))
        except ProtocolError as error:
            assert len(str(error)) < 2_000


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"[" * 100_000, "recursion"),
        (b'{"type": "progress", "text": 5}', "expected text of type str, got 5"),
        (b'{"type": "line", "text": "a", "level": null}', "expected level of type str"),
        (b'{"type": "ready", "version": "1"}', "expected version of type int|lines"),
        (b'{"type": "steps", "records": [[0, 1, "long", 8, 0, 0, 7, 0, true]]}', "duration_us"),
        (b'{"type": "steps", "records": [[0, 1, NaN, 8, 0, 0, 7, 0, true]]}', "finite duration"),
        (b'{"type": "signature", "signature": 1e3, "operations": []}', "signature of type int"),
        (b'{"type": "apply", "epoch": 1, "params": {"cycle": 1}}', "unknown parameter 'cycle'"),
        (b'{"type": "apply", "epoch": 1, "params": {"cycle_time_ms": -1}}', "got -1; unset"),
        (b'{"type": "apply", "epoch": 99999999999999999999, "params": {}}', "epoch of type int"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line: bytes, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        decode(line)
