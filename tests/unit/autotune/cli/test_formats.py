from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
from collections.abc import Callable

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.cli.formats import formats_of, render
from autotune.errors import InvalidSettingError
from autotune.exact import rounded
from autotune.result import Result, environment, launcher_arguments
from autotune.space import BY_ENV, BY_NAME, HOROVOD, PARAMETERS
from autotune.trial import CommParams

BARE = {"PATH": os.environ["PATH"]}
PURE = ("text", "env", "flags", "yaml", "json", "mpirun", "mpiexec", "k8s")
"""Formats that are read here without a process."""

settings_of_any_kind = st.builds(
    CommParams,
    fusion_threshold_bytes=st.integers(0, 2**40),
    cycle_time_ms=st.floats(0, 10_000),
    cache_capacity=st.integers(0, 2**20),
    hierarchical_allreduce=st.booleans(),
    hierarchical_allgather=st.booleans(),
)


def from_text(text: str) -> CommParams:
    words = [line.split() for line in text.splitlines()]
    values = {word[0]: BY_NAME[word[0]].parse(word[1]) for word in words if word[0] in BY_NAME}
    return CommParams.from_dict(values)


def from_env(text: str) -> CommParams:
    pairs = [line.split("=") for line in text.splitlines()]
    return CommParams.from_dict(
        {BY_ENV[key].name: BY_ENV[key].parse(value) for key, value in pairs}
    )


def from_flags(text: str) -> CommParams:
    """Read as the launcher does: MiB, ms, entries, --x and --no-x."""
    parser = argparse.ArgumentParser()
    for parameter in PARAMETERS:
        if parameter.type is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(parameter.flag, dest=parameter.name, action=action)
        else:
            parser.add_argument(parameter.flag, dest=parameter.name, type=float)
    return from_launcher(vars(parser.parse_args(shlex.split(text))))


def from_yaml(text: str) -> CommParams:
    content = yaml.safe_load(text)["params"]
    flag_names = {p.flag.removeprefix("--").replace("-", "_"): p.name for p in PARAMETERS}
    assert all(isinstance(value, int | float | bool) for value in content.values())
    return from_launcher({flag_names[key]: value for key, value in content.items()})


def from_launcher(values: dict) -> CommParams:
    values = {name: BY_NAME[name].of_shown(value) for name, value in values.items()}
    return CommParams.from_dict(values)


def from_json(text: str) -> CommParams:
    content = json.loads(text)
    return CommParams.from_dict({name: content[name] for name in BY_NAME})


def from_pairs(words: list[str]) -> CommParams:
    return from_env("\n".join(word for word in words if word.startswith("HOROVOD_")))


def from_mpirun(text: str) -> CommParams:
    words = shlex.split(text)
    assert words[::2] == ["-x"] * len(PARAMETERS)
    return from_pairs(words)


def from_mpiexec(text: str) -> CommParams:
    words = shlex.split(text)
    assert words[::3] == ["-genv"] * len(PARAMETERS)
    return from_pairs([f"{a}={b}" for a, b in zip(words[1::3], words[2::3], strict=True)])


def from_script(text: str) -> CommParams:
    """Read as a shell does, in which ``srun`` and ``mpiexec`` show what they would pass on."""
    show = 'srun() { env; }; mpiexec() { shift 2; "${@:1:6}"; }\n'
    script = show + text.replace("python train.py", "")
    done = subprocess.run(
        ["bash", "-eu", "-c", script], capture_output=True, text=True, check=True, env=BARE
    )
    return from_pairs([line for line in done.stdout.splitlines() if line.startswith("HOROVOD_")])


def from_k8s(text: str) -> CommParams:
    block = yaml.safe_load(text)
    assert list(block) == ["env"]
    assert all(set(entry) == {"name", "value"} for entry in block["env"])
    return from_pairs([f"{entry['name']}={entry['value']}" for entry in block["env"]])


READERS: dict[str, Callable[[str], CommParams]] = {
    "text": from_text,
    "env": from_env,
    "flags": from_flags,
    "yaml": from_yaml,
    "json": from_json,
    "mpirun": from_mpirun,
    "mpiexec": from_mpiexec,
    "slurm": from_script,
    "pbs": from_script,
    "k8s": from_k8s,
}


def test_every_format_has_a_reader_here() -> None:
    assert set(READERS) == set(formats_of(HOROVOD))


@pytest.mark.parametrize("name", PURE)
@settings(max_examples=25)
@given(params=settings_of_any_kind)
def test_every_format_is_exact(name: str, params: CommParams) -> None:
    assert READERS[name](render(Result(params=params), name)) == params


@pytest.mark.parametrize("name", PURE)
@pytest.mark.parametrize("cycle", [5e-324, 1e-05, 0.0, 1e4])
@pytest.mark.parametrize("threshold", [0, 1, int(127.99999999999999 * 2**20), 2**40])
def test_the_edges_are_exact(name: str, cycle: float, threshold: int) -> None:
    params = CommParams(fusion_threshold_bytes=threshold, cycle_time_ms=cycle)
    assert READERS[name](render(Result(params=params), name)) == params


@pytest.mark.parametrize("name", ["slurm", "pbs"])
def test_a_batch_script_is_a_shell_script_that_passes_the_values_on(name: str) -> None:
    params = CommParams(fusion_threshold_bytes=123457, cycle_time_ms=1e-05)
    job = {"size": 8, "local_size": 4}
    text = render(Result(params=params, job=job), name)
    assert from_script(text) == params
    directives = [line.split(" ", 1)[1] for line in text.splitlines() if line[:2] in ("#S", "#P")]
    assert (
        directives
        == {
            "slurm": ["--ntasks=8", "--ntasks-per-node=4"],
            "pbs": ["-l select=2:ncpus=4:mpiprocs=4"],
        }[name]
    )


@pytest.mark.parametrize("name", ["slurm", "pbs", "k8s"])
def test_a_script_says_what_its_values_are_worth(name: str) -> None:
    text = render(Result(params=CommParams(), score=10.0, gain=(0.1, 0.05, 0.2)), name)
    assert "bytes/us, higher is better" in text and "not certified" in text
    assert "does not say how many ranks" in text
    assert "NOT finished" in render(Result(params=CommParams(), finished=False), name)


def test_an_unknown_format_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidSettingError, match="text, env, flags, yaml, json"):
        render(Result(params=CommParams()), "xml")


def test_the_environment_names_all_five_variables() -> None:
    assert environment(CommParams(fusion_threshold_bytes=64)) == {
        "HOROVOD_FUSION_THRESHOLD": "64",
        "HOROVOD_CYCLE_TIME": "1.0",
        "HOROVOD_CACHE_CAPACITY": "1024",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        "HOROVOD_HIERARCHICAL_ALLGATHER": "0",
    }


def test_the_flags_are_the_launchers() -> None:
    params = CommParams(fusion_threshold_bytes=3 * 2**19, hierarchical_allreduce=True)
    assert " ".join(launcher_arguments(params)) == (
        "--fusion-threshold-mb 1.5 --cycle-time-ms 1 --cache-capacity 1024 "
        "--hierarchical-allreduce --no-hierarchical-allgather"
    )


def test_the_yaml_is_a_section_of_the_launchers_file() -> None:
    content = yaml.safe_load(render(Result(params=CommParams()), "yaml"))
    assert content == {
        "params": {
            "fusion_threshold_mb": 64,
            "cycle_time_ms": 1,
            "cache_capacity": 1024,
            "hierarchical_allreduce": False,
            "hierarchical_allgather": False,
        }
    }


def test_json_and_text_say_what_is_known() -> None:
    result = Result(
        params=CommParams(),
        score=2148.44,
        finished=False,
        gain=(0.1, 0.05, 0.2),
        certified=True,
        job={"size": 4},
    )
    content = json.loads(render(result, "json"))
    assert content["score"] == 2148.44
    assert content["score_unit"] == "bytes/us, higher is better"
    assert not content["finished"]
    assert (content["gain"], content["gain_low"], content["gain_high"]) == (0.1, 0.05, 0.2)
    assert content["certified"]
    assert content["job"] == {"size": 4}
    text = render(result, "text")
    assert "2148.44 bytes/us, higher is better" in text
    assert "+10.0 % over the default (+5.0 to +20.0), certified" in text
    assert "not finished" in text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1063.4, 3, "1063"),
        (999.6, 3, "1000"),
        (1234567.8, 6, "1234568"),
        (0.00001234, 3, "0.0000123"),
        (12.345, 3, "12.3"),
        (0.0, 3, "0"),
    ],
)
def test_rounded_numbers_have_no_exponent(value: float, digits: int, text: str) -> None:
    assert rounded(value, digits) == text
