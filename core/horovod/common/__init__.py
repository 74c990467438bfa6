"""What no framework owns: start and end, settings, process sets, exceptions, small helpers."""
