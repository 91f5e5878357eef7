"""Every SQL statement of the store, by the table it is about.

A constant is a whole statement; a function takes what a statement cannot name as a value: a table, a dialect, a list of
numbers. Values are named (`:lane`), identifiers that are keywords are quoted (`"offset"`).
"""
