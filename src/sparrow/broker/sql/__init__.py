"""What a broker does differently on a database, where several brokers may share the work."""
