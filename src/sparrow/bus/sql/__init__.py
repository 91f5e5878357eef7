"""The bus's tables, and each statement on them once: plain functions over a connection, in no transaction of their own.

They are the same for blocking and for asyncio use: the first calls them, the second has SQLAlchemy run them.
"""
