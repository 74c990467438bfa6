"""Whole jobs in simulated time: what tests of them share."""

from __future__ import annotations

from simulated.job import finished, job, tuner

__all__ = ["finished", "job", "tuner"]
