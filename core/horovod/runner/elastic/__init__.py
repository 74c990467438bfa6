"""The launcher of elastic jobs: jobs that outlive their ranks.

``driver`` is the process that stands in ``starter``'s place: it has workers started on the hosts
that ``discovery`` finds, talks to them at its ``desk``, and does what ``job`` decides: who is in
the next round (``horovod.common.rounds``), who is begun again, which ``hosts`` are left out, when
the job ends.
"""
