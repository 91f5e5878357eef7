"""What all pages share: the view with its frame, charts, formats, forms, preferences, and the client of the API."""
