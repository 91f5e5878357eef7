"""Who may do what: tokens, their permissions, source addresses, and RocketMQ's ACLs."""
