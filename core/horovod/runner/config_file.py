"""Reads ``horovodrun --config-file``: YAML sections with the options of the command line.

::

    params:
      fusion_threshold_mb: 12.2035
      hierarchical_allreduce: false
    autotune:
      enabled: true
      log_file: log.csv
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from horovod.common.launched import CONTROLLER
from horovod.runner.options import BY_KEY

Entry = tuple[str, object]


class ConfigFileError(ValueError):
    """The config file cannot be used; the message names file, key, value and what was expected."""


def read_config_file(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return ({variable: text}, warnings about keys that mean nothing here). **Local.**

    Raises:
        ConfigFileError: No such file, not YAML, or a value that its variable does not take.
    """
    environment: dict[str, str] = {}
    unknown: list[str] = []
    warnings: list[str] = []
    for key, value in _entries(_load(path)):
        if value is None:
            continue
        if key == "controller":
            wish, remarks = _controller(path, value)
            environment.update(wish)
            warnings += remarks
        elif key in BY_KEY:
            environment[BY_KEY[key].env] = _text(path, key, value)
        else:
            unknown.append(key)
    if unknown:
        warnings.append(f"{path}: ignored, without meaning here: {', '.join(unknown)}")
    return environment, warnings


def _load(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(f"--config-file {path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigFileError(f"--config-file {path}: not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ConfigFileError(f"--config-file {path}: expected sections, got {content!r}")
    return content


def _entries(content: Mapping[str, Any]) -> Iterator[Entry]:
    for section, values in content.items():
        if isinstance(values, Mapping):
            yield from ((f"{section}.{name}", value) for name, value in values.items())
        else:
            yield str(section), values


def _text(path: Path, key: str, value: object) -> str:
    option = BY_KEY[key]
    if option.is_switch and not isinstance(value, bool):
        value = {0: False, 1: True}.get(value, value) if isinstance(value, int) else value
        if not isinstance(value, bool):
            raise ConfigFileError(f"{path}: {key}: expected true or false, got {value!r}")
    if not isinstance(value, str | int | float):
        raise ConfigFileError(f"{path}: {key}: expected one value, got {value!r}")
    try:
        as_switch = option.is_switch and isinstance(value, bool)
        return option.environment_text(bool(value) if as_switch else str(value))
    except ValueError as error:
        raise ConfigFileError(f"{path}: {key}: {error}") from error


def _controller(path: Path, value: object) -> tuple[dict[str, str], list[str]]:
    """Return ({variable: text}, warnings) for the wish how ranks are started."""
    name = str(value).lower()
    if name in ("mpi", "gloo"):
        return {CONTROLLER: name}, []
    if name != "jsrun":
        raise ConfigFileError(f"{path}: controller: expected mpi or gloo, got {value!r}")
    return {}, [f"{path}: controller: {value} is ignored: no jsrun starts ranks here"]
