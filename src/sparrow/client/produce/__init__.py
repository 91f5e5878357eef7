"""The rules of producing, without I/O: the choice of queues and brokers, delays, and the log of sends."""
