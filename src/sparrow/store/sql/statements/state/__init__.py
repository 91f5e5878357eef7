"""Statements on the tables of `store/sql/state`: catalog, committed offsets, leases, marks, the ledger and tokens."""
