"""Talaria: a self-hosted gateway that keeps AI agents alive for weeks."""

__version__ = "0.1.0"
