"""The tuner's state machine: one search, paired windows, certificate, budget, scores over time."""
