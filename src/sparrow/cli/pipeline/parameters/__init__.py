"""Parameter groups that several `sparrow pipeline` commands share."""
