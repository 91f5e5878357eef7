"""The source of `format("sparrow")`: batch and stream readers over brokers or store files."""
