"""Transport for Sparrow's own broker and Apache RocketMQ."""
