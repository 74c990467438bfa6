"""Everything that the runtime raises on purpose, beside ``ValueError`` for wrong arguments.

::

    RuntimeError
    ├── HorovodInternalError     an operation failed on all ranks, a rank died, or the engine ended
    └── HostsUpdatedInterrupt    elastic jobs: the set of hosts changed
    ImportError
    └── HorovodVersionMismatchError    never raised: one build serves all versions of a framework
"""


class HorovodInternalError(RuntimeError):
    """A collective failed: the message names the tensor, the ranks and what they disagreed on."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts of an elastic job changed.

    Args:
        skip_sync: The state need not be synchronised again (hosts were only removed).
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of hosts changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Horovod was built for another version of a framework; libraries import the name.

    Args:
        name: Of the framework.
        version: That was found.
        installed_version: That Horovod was built for.
    """

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """**Local.** Return the sentence of ``HorovodVersionMismatchError``; arguments as there."""
    return f"{name}: expected version {installed_version}, got {version}; install it again"
