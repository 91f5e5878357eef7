"""What a replica is to clients: the roles of brokers in a replica set, and the fixed roles of masters and slaves."""
