"""Found by every Python that ``autotune run`` or ``autotune replay`` starts, by PYTHONPATH.

It gives way to the ``sitecustomize`` that would have been found without it, imports no torch, and
costs a process that is not to be tuned next to nothing.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _give_way() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    elsewhere = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _listen() -> None:
    try:
        from autotune.ddp import entry
    except ImportError as error:
        if os.environ.get("RANK") == "0":
            print(
                f"[ddp] autotune: not tuned: {sys.executable} cannot import it ({error}); install "
                "it in the environment of the script",
                file=sys.stderr,
            )
        return
    if entry.is_wanted(os.environ):
        entry.listen()


_listen()
_give_way()
