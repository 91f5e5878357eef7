"""Statements on `hermes_ledger`: how far each scope of atomic appends has got."""

SELECT_SCOPE = "SELECT reached FROM hermes_ledger WHERE scope = :scope"

ADVANCE_SCOPE = "UPDATE hermes_ledger SET reached = :number, at = :now WHERE scope = :scope AND reached < :number"
"""Locks the row of the scope until the transaction ends."""

DELETE_OLDER = "DELETE FROM hermes_ledger WHERE at < :older"
