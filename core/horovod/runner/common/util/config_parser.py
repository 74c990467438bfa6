"""Options of a job as attributes, and the variables that they become.

The attributes are named as the long flags of ``horovodrun``; what is None is not given. The names
of the variables are here, too, as Horovod has them (``HOROVOD_FUSION_THRESHOLD`` and so on).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from typing import Any

from horovod.runner.options import BY_KEY, OPTIONS, Option

LOG_LEVELS = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]
HOROVOD_TORUS_ALLREDUCE = "HOROVOD_TORUS_ALLREDUCE"
_VARIABLES = frozenset(option.env for option in OPTIONS)
_DISABLED = {"stall_check": "no_stall_check"}
"""Switches that Horovod keeps under an attribute of the opposite meaning."""
_CONTROLLERS = {"gloo": "use_gloo", "mpi": "use_mpi"}


def __getattr__(name: str) -> str:
    """Return the name of a variable that an option sets: it is its own value."""
    if name not in _VARIABLES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return name


def attribute_of(option: Option) -> str:
    """Return the attribute of ``option``."""
    name = option.flag.removeprefix("--").replace("-", "_")
    return _DISABLED.get(name, name)


def set_args_from_config(
    args: Any, config: Mapping[str, Any], override_args: Collection[str]
) -> None:
    """**Local.** Set attributes of ``args`` from the sections of a config file.

    Args:
        args: Options as attributes.
        config: What the YAML file holds.
        override_args: Attributes that stay as they are.

    Raises:
        ValueError: It asks for a controller that there is not.
    """
    wish = str(config.get("controller") or "").lower()
    if wish and wish not in _CONTROLLERS:
        raise ValueError(f"controller: expected gloo or mpi, got {config['controller']!r}")
    if wish and not (args.use_gloo or args.use_mpi):
        setattr(args, _CONTROLLERS[wish], True)
    for key, option in BY_KEY.items():
        section, _, name = key.partition(".")
        value = (config.get(section) or {}).get(name)
        attribute = attribute_of(option)
        if value is not None and attribute not in override_args:
            is_opposite = attribute in _DISABLED.values()
            setattr(args, attribute, not value if is_opposite else value)


def set_env_from_args(env: MutableMapping[str, str], args: Any) -> MutableMapping[str, str]:
    """**Local.** Set the variables of the options that ``args`` has, and return ``env``.

    Raises:
        ValueError: A variable does not take its value.
    """
    for option in OPTIONS:
        attribute = attribute_of(option)
        value = getattr(args, attribute, None)
        if value is None:
            continue
        if option.is_switch:
            value = bool(value) != (attribute in _DISABLED.values())
            env[option.env] = option.environment_text(value)
        else:
            env[option.env] = option.environment_text(str(value))
    return env


def validate_config_args(args: Any) -> None:
    """**Local.** Check the options of ``args``; ValueError as ``set_env_from_args``."""
    set_env_from_args({}, args)
