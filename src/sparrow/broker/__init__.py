"""The broker. One folder a capability; a handler takes a typed request and the broker, and returns a response."""

from sparrow.extras import require

require("numpy", "pyarrow", "pydantic_settings", extra="server", for_="sparrow.broker")
