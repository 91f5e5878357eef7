"""RabbitMQ transport."""
