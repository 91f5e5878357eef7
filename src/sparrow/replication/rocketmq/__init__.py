"""Following a live Apache RocketMQ master: its log over the classic HA port, its metadata over remoting."""
