"""The network: byte-level pieces of HTTP clients, and the checked way out for tools and commands."""
