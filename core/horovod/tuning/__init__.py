"""What of the runtime talks to ``autotune``; ``autotuning`` is where steps and settings go."""
