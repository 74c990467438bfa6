"""LSF's jsrun, under Horovod's names: ``horovodrun`` does not start jobs by it."""

from horovod.runner.absent import absent_names

__getattr__ = absent_names(
    __name__,
    ("generate_jsrun_rankfile", "js_run"),
    "horovodrun starts ranks by mpirun or by itself (--gloo); jsrun may start the script itself",
)


def is_jsrun_installed() -> bool:
    """**Local.** Return False: ``horovodrun`` starts no job by jsrun."""
    return False
