"""Horovod's name for its service on each host; nothing of it is here."""
