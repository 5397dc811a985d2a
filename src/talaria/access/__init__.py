"""Who may use the agents (one rule for every input, pairing, HTTP logins), and how much they may spend."""
