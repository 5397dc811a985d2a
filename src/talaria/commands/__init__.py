"""Slash commands: pure functions from a view of the session to a reply and its effects."""
