"""Who may connect and make requests: TLS, signatures, the check before a handler, and the audit log."""
