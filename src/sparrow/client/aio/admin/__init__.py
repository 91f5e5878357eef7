"""Administration: topics, groups, offsets, tokens, message queries, resends and dead letters."""
