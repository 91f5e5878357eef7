"""The state of pop: messages in flight and the positions of groups, on a log store and on a database."""
