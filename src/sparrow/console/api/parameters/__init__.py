"""Parameters that routes share: names in paths, plans that a request confirms, and times."""
