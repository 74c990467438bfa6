"""Names of Horovod's that libraries import and that have no meaning here: each says so at its use.

A library that merely imports such a name, or derives a class from it, goes on; where the name is
missing it believes that Horovod is not installed at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

SERVICES = (
    "it belongs to the services by which Horovod starts ranks on Spark and Ray, which are not "
    "here; start jobs by horovodrun, horovod.run, mpirun, srun or torchrun"
)


class Absent:
    """Raises when it is called or instantiated.

    Raises:
        NotImplementedError: Always; the message says what to do instead.
    """

    _name = _why = ""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"{self._name} is not available in hvd-autotune: {self._why}")


def absent(module: str, name: str, why: str) -> type[Absent]:
    """Return what stands for ``name`` of ``module``; ``why`` ends its sentence."""
    fields = {"_name": f"{module}.{name}", "_why": why, "__module__": module, "__doc__": why}
    return type(name, (Absent,), fields)


def absent_names(module: str, names: Iterable[str], why: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``module`` that answers for ``names`` and for nothing else."""
    stands_for = {name: absent(module, name, why) for name in names}

    def find(name: str) -> Any:
        if name not in stands_for:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return stands_for[name]

    return find
