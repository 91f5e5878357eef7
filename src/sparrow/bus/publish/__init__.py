"""Publishing: from a name and a payload to rows in the caller's transaction."""
