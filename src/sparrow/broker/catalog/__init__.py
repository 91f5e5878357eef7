"""Topics, consumer groups, committed offsets, queue locks and queue bounds."""
