"""Messages that wait at brokers: delayed messages and half messages, as lists, and what an operator does to them."""
