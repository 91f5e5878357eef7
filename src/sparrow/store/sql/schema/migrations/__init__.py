"""Numbered migrations of the schema: forward only, one module for each version.

Module `m0002_…` brings a database from version 1 to version 2, and so on. Its DDL is frozen: it does not follow later
changes of `schema/ddl`. It must be repeatable, because MySQL commits every DDL statement at once.
"""
