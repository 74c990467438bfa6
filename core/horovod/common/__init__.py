"""Names that scripts import from ``horovod.common``: exceptions, helpers, process sets."""
