"""`./dev clients`: real clients of `/v1` against a real gateway, and the table of what they can do."""
