"""The tuner's state machine; flat: one job (tuner), one search (run), what they share.

``steps`` reads training steps and windows of them, ``exploring`` decides what comes next,
``comparing`` holds two settings against each other in pairs of windows.
"""
