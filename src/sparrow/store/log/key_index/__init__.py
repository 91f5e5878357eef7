"""key_index."""
