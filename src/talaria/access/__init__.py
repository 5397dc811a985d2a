"""Access to the agents (one rule for every input, pairing, HTTP logins), and budgets."""
