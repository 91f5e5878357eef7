"""Producer, consumer and admin. The rules are pure modules here; two shells, asyncio and blocking, put them to work."""
