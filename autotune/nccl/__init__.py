"""NCCL's own parameters: the tuner library that NCCL loads, and where exploring them can matter.

``offer`` has NCCL load the library (``csrc/nccl_tuner``), ``Plugin`` tells it what to choose, and
``links`` says over what the GPUs of a job talk. Standard library only.
"""
