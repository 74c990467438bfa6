"""Bayesian optimization of the communication parameters: no files, clocks, global randomness.

Notation, in every module of this package:

=====================  ==============  ============================================================
letter                 shape           meaning
=====================  ==============  ============================================================
``n``, ``d``, ``m``    counts          readings, dimensions of the search space, candidates
``X``                  ``(n, d)``      settings that were read, in the unit cube
``values``             ``(n,)``        log ratios to the default's score; higher is better
``variances``          ``(n,)``        of the readings, as far as they are known before
``candidates``         ``(m, d)``      settings that may be proposed, in the unit cube
``K``, ``L``           ``(n, n)``      covariance of the readings; its lower Cholesky factor
``mean``, ``std``      ``(m,)``        posterior of the noise-free log ratio
``length_scales``      ``(d,)``        distance in the unit cube over which the log ratio changes
``signal_variance``    scalar          prior variance of what is smooth
``noise_factor``       scalar          on the variances of the readings; learned
=====================  ==============  ============================================================

Reading order: ``encoding`` (parameters <-> unit cube), ``initial_design``, ``trend`` (what is
expected), ``surrogate`` (what is known), ``acquisition`` (what is worth knowing), ``optimizer``
(``ask`` and ``tell``).
"""

from autotune.bayes.encoding import SearchSpace
from autotune.bayes.optimizer import BayesianOptimizer, Incumbent, Proposal, Simplified

__all__ = ["BayesianOptimizer", "Incumbent", "Proposal", "SearchSpace", "Simplified"]
