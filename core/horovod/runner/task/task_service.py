"""Horovod's service on each host: names that say they are not here."""

from horovod.runner.absent import SERVICES, absent_names

__getattr__ = absent_names(__name__, ("HorovodRunTaskClient", "HorovodRunTaskService"), SERVICES)
