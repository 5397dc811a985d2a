"""Who may speak to the agents: one function for every way in, and pairing for those who are new."""
