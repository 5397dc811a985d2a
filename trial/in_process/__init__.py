"""Loads inside this process: on a virtual clock, on seeded event loops, or over many turns."""
