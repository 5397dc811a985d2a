"""Webhooks: programs elsewhere that call `POST /hooks/NAME`, and so start a turn."""
