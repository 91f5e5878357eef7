"""State of the log store, kept as records of the log: topics, groups, tokens, offsets, marks, the ledger."""
