"""Messages in the database that is there already: MariaDB, MySQL, PostgreSQL or SQLite."""
