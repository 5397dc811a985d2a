"""Attacks on a gateway, its sandboxes and its proxy, and how each must end."""
