"""The services by which Horovod runs on Spark and Ray: names that say they are not here."""
