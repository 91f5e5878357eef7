"""`sparrow cluster`: create and operate replica sets."""
