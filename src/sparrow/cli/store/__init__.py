"""`sparrow store`: inspect, check and copy stores."""
