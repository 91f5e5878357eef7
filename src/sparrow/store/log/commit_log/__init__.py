"""commit_log."""
