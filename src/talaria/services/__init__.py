"""Background services of the gateway, each a part of its own."""
