"""Imports from other programs: what a home of theirs holds, the plan, and carrying it out."""
