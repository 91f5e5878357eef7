"""The SQL statements of the bus, one function each, grouped by what they are for.

Each function returns a statement in the notation of `SqlDialect`: `?` for values, `"Name"` for identifiers. The
modules of `sparrow.bus.sql` run them. Queries with optional conditions stand in `stored_events` and `statistics`.
"""
