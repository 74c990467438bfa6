"""What of the runtime talks to ``autotune``, and the only room that does.

``autotuning`` is what front ends and scripts call; ``session`` is rank 0's talk with the service.
"""
