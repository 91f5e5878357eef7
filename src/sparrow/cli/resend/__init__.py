"""`sparrow resend`."""
