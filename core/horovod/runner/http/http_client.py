"""Horovod's store over HTTP: names that say they are not here."""

from horovod.runner.absent import absent_names

__getattr__ = absent_names(
    __name__,
    ("put_data_into_kvstore", "read_data_from_kvstore"),
    "nothing is kept in a store over HTTP; horovod.run calls a function on every rank and returns "
    "the results",
)
