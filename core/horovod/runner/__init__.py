"""``horovodrun``: starts a job under the MPI that the engine was built with.

Imports no torch and starts no MPI.
"""
