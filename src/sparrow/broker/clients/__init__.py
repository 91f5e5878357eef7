"""Connected clients: heartbeats, group membership and subscriptions."""
