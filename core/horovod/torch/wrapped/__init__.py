"""The parts of a wrapped optimizer; see ``horovod.torch.optimizer``."""
