"""Loads on real gateways, which faults hit."""
