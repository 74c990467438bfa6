"""Horovod's search for common network interfaces: names that say they are not here."""

from horovod.runner.absent import absent_names

__getattr__ = absent_names(
    __name__,
    (
        *("HorovodRunDriverClient", "HorovodRunDriverService"),
        *("get_common_interfaces", "get_local_interfaces"),
    ),
    "ranks try all addresses of a host at once, so that no common interface is searched for; "
    "HOROVOD_GLOO_IFACE or --network-interfaces names those to use",
)
