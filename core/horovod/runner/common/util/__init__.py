"""Small tools under Horovod's names."""
