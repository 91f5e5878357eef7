"""Appends to the commit log: the writer, encoded runs, atomic appends, and the flusher that makes them durable."""
