"""The terminal: chat and ask, over the HTTP API."""
