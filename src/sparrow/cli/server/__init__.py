"""Commands that start servers: `up`, `broker` and `name-server`."""
