"""Search: finding what was said in the logs of sessions."""
