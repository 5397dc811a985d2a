"""The `talaria` command."""
