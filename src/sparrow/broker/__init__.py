"""The broker. One folder a capability; a handler takes a typed request and the broker, and returns a response."""
