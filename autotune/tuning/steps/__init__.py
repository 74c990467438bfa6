"""What a training step is, and what windows of steps show."""
