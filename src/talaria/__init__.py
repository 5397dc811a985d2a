"""Talaria: a self-hosted gateway that keeps AI agents alive for weeks."""
