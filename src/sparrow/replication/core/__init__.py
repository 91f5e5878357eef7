"""The replication protocol without I/O: values and state machines. Time, disk and network are arguments and results."""
