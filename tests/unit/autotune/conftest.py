"""Simulated jobs, for the units that are tested by one."""

from __future__ import annotations

from simulated.job import finished, job, tuner

__all__ = ["finished", "job", "tuner"]
