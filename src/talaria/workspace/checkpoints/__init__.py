"""Copies of a folder's files, taken around the calls of a turn, so that `/undo` puts files back."""
