"""Horovod's services between launcher and hosts: names that say they are not here."""

from horovod.runner.absent import SERVICES, absent_names


class NoValidAddressesFound(Exception):
    """No address leads to a service; never raised here."""


__getattr__ = absent_names(
    __name__, ("AckResponse", "BasicClient", "BasicService", "PingRequest", "Wire"), SERVICES
)
