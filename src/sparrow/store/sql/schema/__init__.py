"""The tables of the SQL store: their names, DDL, partitions and migrations."""
