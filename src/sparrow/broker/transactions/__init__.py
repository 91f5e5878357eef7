"""Transactional messages: half messages, commit, rollback and check-back, on a log store and on a database."""
