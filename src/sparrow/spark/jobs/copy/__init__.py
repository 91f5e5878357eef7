"""Jobs that write existing messages again: restore from an archive, and replay."""
