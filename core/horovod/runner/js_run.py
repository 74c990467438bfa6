"""What libraries ask Horovod's module of this name: whether LSF's jsrun starts jobs."""


def is_jsrun_installed() -> bool:
    """**Local.** Return False: ``horovodrun`` starts jobs by mpirun only."""
    return False
