"""The output of a short command."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from horovod.runner.common.util import safe_shell_exec


def execute(
    command: str | Sequence[str], env: Mapping[str, str] | None = None
) -> tuple[str, int] | None:
    """**Local.** Return (what ``command`` wrote to both streams, its exit code).

    Args:
        command: For the shell; or words, which need none.
        env: Its environment; None: ours.

    Returns:
        None where the command cannot be started.
    """
    output = io.StringIO()
    try:
        code = safe_shell_exec.execute(command, env=env, stdout=output, stderr=output)
    except OSError:
        return None
    return output.getvalue(), code
