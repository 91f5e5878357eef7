"""sparrow."""
