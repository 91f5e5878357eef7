"""Bytes <-> values, without I/O: frames, headers, records, columns. Pure functions, made to be fuzzed."""
