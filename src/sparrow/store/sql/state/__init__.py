"""State beside the messages: topics and groups, committed offsets, tokens, leases and ranges to resend."""
