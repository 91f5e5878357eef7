"""Reading topics: tables and streams, from brokers or from the files of a store."""
