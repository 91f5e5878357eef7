"""Encoding of events: headers, payloads as JSON, the Content column, the wire document, and JSON Schema."""
