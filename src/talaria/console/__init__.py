"""The terminal chat and `talaria ask`: clients of the HTTP API."""
