"""Objects as text."""

from __future__ import annotations

import base64
from typing import Any


def dumps_base64(obj: Any, to_ascii: bool = True) -> str | bytes:
    """**Local.** Return ``obj``, pickled by value where it is code, as base64."""
    import cloudpickle  # type: ignore[import-untyped]

    encoded = base64.b64encode(cloudpickle.dumps(obj))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: str | bytes) -> Any:
    """**Local.** Return the object of ``dumps_base64``. It is unpickled: trust where it is from."""
    import cloudpickle

    return cloudpickle.loads(base64.b64decode(encoded))
