"""Codecs of the protocol, without I/O: frames, headers, bodies, records and columns."""
