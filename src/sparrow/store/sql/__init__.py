"""The SQL store: messages in tables of MariaDB, MySQL, PostgreSQL or SQLite."""
