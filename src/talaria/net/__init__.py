"""Byte-level pieces that HTTP clients share."""
