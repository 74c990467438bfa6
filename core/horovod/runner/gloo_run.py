"""Jobs without MPI, under Horovod's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from horovod.common import launched
from horovod.common.util import gloo_built as gloo_built
from horovod.runner import arguments
from horovod.runner.absent import absent_names
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.common.util.settings import BaseSettings

__getattr__ = absent_names(
    __name__,
    ("gloo_run_elastic", "launch_gloo", "launch_gloo_elastic"),
    "gloo_run, horovodrun --gloo and horovod.run start jobs of a fixed size over ssh; for another "
    "way to start ranks use horovod.runner.http.http_server.RendezvousServer",
)


def create_slot_env_vars(slot_info: SlotInfo) -> dict[str, str]:
    """**Local.** Return the variables that tell a rank its place."""
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    place = {f"HOROVOD_{name.upper()}": str(getattr(slot_info, name)) for name in names}
    return {"HOROVOD_HOSTNAME": slot_info.hostname, **place}


def create_run_env_vars(
    server_ip: str, nics: Iterable[str], port: int, elastic: bool = False
) -> dict[str, str]:
    """**Local.** Return the variables that tell every rank where all meet.

    Args:
        server_ip: Of the host of the ``RendezvousServer``.
        nics: Network interfaces that ranks may use; none: any.
        port: Its port.
        elastic: Only False.

    Raises:
        NotImplementedError: An elastic job.
    """
    if elastic:
        raise NotImplementedError("create_run_env_vars(elastic=True): jobs have a fixed size here")
    names = ",".join(nics)
    interfaces = {"HOROVOD_GLOO_IFACE": names, "NCCL_SOCKET_IFNAME": names} if names else {}
    return {
        launched.MEETING_HOST: server_ip,
        launched.MEETING_PORT: str(port),
        launched.CONTROLLER: "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **interfaces,
    }


def gloo_run(
    settings: BaseSettings,
    nics: Iterable[str] | None,
    env: Mapping[str, str],
    server_ip: str,
    command: Sequence[str],
) -> None:
    """Run ``command`` as ``horovodrun --gloo`` does, and wait for its end. **Local.**

    Args:
        settings: The job.
        nics: Network interfaces to use; none: any.
        env: Environment of the job.
        server_ip: Without a meaning here: other hosts find this one by the way to them.
        command: Program and arguments of every rank.

    Raises:
        RuntimeError: The job failed.
        ValueError: A setting is wrong.
    """
    arguments.run_settings(settings, nics, env, command, way="use_gloo")
