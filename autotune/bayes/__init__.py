"""Bayesian optimization of the communication parameters: no files, clocks, global randomness.

Notation, in every module of this package:

=====================  ==============  ============================================================
letter                 shape           meaning
=====================  ==============  ============================================================
``n``, ``d``, ``m``    counts          readings, dimensions of the search space, candidates
``X``                  ``(n, d)``      settings that were read, in the unit cube
``y``                  ``(n,)``        standardised log scores; higher is better
``candidates``         ``(m, d)``      settings that may be proposed, in the unit cube
``K``, ``L``           ``(n, n)``      covariance of the readings; its lower Cholesky factor
``mean``, ``std``      ``(m,)``        posterior of the noise-free log score
``length_scales``      ``(d,)``        distance in the unit cube over which the log score changes
``signal_variance``    scalar          prior variance of ``y``
``noise_variance``     scalar          variance of one reading around the truth, in units of ``y``
=====================  ==============  ============================================================

Reading order: ``encoding`` (parameters <-> unit cube), ``initial_design``, ``surrogate`` (what is
known), ``acquisition`` (what is worth knowing), ``optimizer`` (``ask`` and ``tell``).
"""

from autotune.bayes.encoding import SearchSpace
from autotune.bayes.optimizer import BayesianOptimizer, Incumbent, Proposal

__all__ = ["BayesianOptimizer", "Incumbent", "Proposal", "SearchSpace"]
