"""Horovod's name for what finds common network interfaces; nothing of it is here."""
