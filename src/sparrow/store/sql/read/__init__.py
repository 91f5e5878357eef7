"""Reading: views of lanes with a cache of their newest messages, polling for growth, searches by time and key."""
