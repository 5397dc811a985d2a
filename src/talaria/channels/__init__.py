"""The platforms on which people reach their agents."""
