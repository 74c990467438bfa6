"""What finds hosts may fail, hang or print anything: one sentence, and the job keeps its hosts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from horovod.runner.elastic.discovery import Discovery, ask, parse


def test_hosts_come_in_order_with_their_slots() -> None:
    text = "b:2\n\n  a \nuser@c.d-e:4\n[fe80::1]:3\n"
    assert list(parse(text, 8).items()) == [("b", 2), ("a", 8), ("user@c.d-e", 4), ("[fe80::1]", 3)]


@pytest.mark.parametrize("line", ["a:b", "a b", "a:-1", "<html>", "a:1:2", "a:9999999", ":3"])
def test_rubbish_is_shown(line: str) -> None:
    with pytest.raises(ValueError, match="expected lines HOST or HOST:SLOTS, got"):
        parse(f"good:2\n{line}\n", 1)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo a; echo no luck >&2; exit 3", "fails with exit code 3: no luck"),
        ("exit 1", "fails with exit code 1"),
        ("/no/such/program", "fails with exit code 127"),
        ("printf '\\377\\376'", "prints what is no text"),
        ("yes", "prints more than 1 MiB"),
        ("sleep 60", "takes longer than 0.5 s"),
        ("sleep 60 & echo a", "takes longer than 0.5 s"),
        ("exec >&- 2>&-; sleep 60", "takes longer than 0.5 s"),
    ],
)
def test_what_goes_wrong_is_one_sentence_in_time(command: str, words: str) -> None:
    limit_s = 20.0 if command == "yes" else 0.5
    began = time.monotonic()
    with pytest.raises(ValueError, match=words):
        ask(command, limit_s if "0.5" in words else 20.0)
    assert time.monotonic() - began < 15


def test_trouble_is_said_once_and_its_end_too_and_hosts_are_kept(tmp_path: Path) -> None:
    script = tmp_path / "hosts"
    found: list[Mapping[str, int]] = []
    said: list[str] = []
    discovery = Discovery(f"cat {script}", 1, found.append, said.append)
    discovery.look()
    discovery.look()
    assert not found and len(said) == 1 and "it is asked again" in said[0]
    script.write_text("a:2\n")
    discovery.look()
    discovery.look()
    assert found == [{"a": 2}] and said[1:] == [f"{said[0].partition(':')[0]}: works again"]
    script.write_text("")
    discovery.look()
    script.write_text("? ?\n")
    discovery.look()
    discovery.look()
    assert len(found) == 1 and len(said) == 4
    assert "finds no host; the job keeps the hosts it has" in said[2]
    assert "expected lines HOST" in said[3]
    script.write_text("a:2\nb:1\n")
    discovery.look()
    assert found[1:] == [{"a": 2, "b": 1}]


def test_no_host_yet_is_no_trouble() -> None:
    said: list[str] = []
    Discovery("true", 1, lambda hosts: None, said.append).look()
    assert not said
