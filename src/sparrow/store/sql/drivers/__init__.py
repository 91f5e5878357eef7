"""Database drivers: the interface that the store needs, and MySQL, PostgreSQL and SQLite behind it."""
