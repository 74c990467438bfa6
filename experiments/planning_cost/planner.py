"""Computes a plan when it is told to, with the priority of a variant: ``planner.py VARIANT PLANS``.

Standard input: a line per plan. Standard output: "ready", then per plan its CPU time in ms.
"""

from __future__ import annotations

import itertools
import sys
import time

from plans import wanted_plans
from variants import VARIANTS, plan_as

from autotune.service import priority


def main() -> None:
    plan_as(VARIANTS[sys.argv[1]])
    priority.become_ordinary()
    plans = list(itertools.islice(wanted_plans(), int(sys.argv[2])))  # imports as well
    priority.give_way()
    print("ready", flush=True)
    for _, plan in zip(sys.stdin, plans, strict=False):
        begin = time.process_time()
        plan()
        print(1000 * (time.process_time() - begin), flush=True)


if __name__ == "__main__":
    main()
