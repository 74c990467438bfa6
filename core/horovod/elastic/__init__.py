"""Elastic jobs as far as they know no framework: state, loop, notifications, what a job leaves.

``loop.run_fn`` runs a function again and again while ranks come and go; ``state.State`` is what it
keeps in between. Front ends add states of their framework (``horovod.torch.elastic``).
"""
