"""The rank-0 process: what a runtime says to it, and what it does with the trial logs."""
