"""Shipped fakes: scripted model and model server, fake clock, in-memory parts."""
