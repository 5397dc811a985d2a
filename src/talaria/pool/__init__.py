"""Warm agents: a pure policy and the leases."""
