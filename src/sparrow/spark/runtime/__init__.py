"""Spark on any machine: Java, the session, a quicker start, and the archive that a cluster needs."""
