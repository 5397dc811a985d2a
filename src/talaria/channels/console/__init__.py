"""The terminal: `talaria chat` and `talaria ask`, as clients of the HTTP API."""
