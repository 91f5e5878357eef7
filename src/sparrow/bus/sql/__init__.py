"""The tables of the bus and everything that is done to them.

The functions take a connection and run in the caller's transaction. A blocking caller calls them directly; for asyncio
SQLAlchemy runs them. `statements` holds the SQL, `dialect` the differences between databases.
"""
