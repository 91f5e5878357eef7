"""The broker: one small module a capability. A handler takes a typed request and the broker, and returns an answer."""
