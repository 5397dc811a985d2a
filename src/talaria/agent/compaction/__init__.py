"""Compaction: how a conversation that outgrows its model's window is made to fit."""
