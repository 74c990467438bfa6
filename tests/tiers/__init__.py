"""What tests/run_tiers.py runs: needs of a tier, its commands, and how results are counted."""
