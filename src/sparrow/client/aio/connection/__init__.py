"""The session: connections to brokers and name servers, cached routes, and heartbeats."""
