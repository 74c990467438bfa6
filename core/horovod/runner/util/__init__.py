"""Small helpers that scripts written for Horovod import from here."""
