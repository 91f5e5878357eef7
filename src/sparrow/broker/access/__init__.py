"""Who may send which request: signatures, tokens, and what each request needs."""
