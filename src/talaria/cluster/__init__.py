"""Keeping the session leases of this process."""
