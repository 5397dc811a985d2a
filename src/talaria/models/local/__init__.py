"""The built-in model: its weights, the process that runs it, and how a tiny model is talked to."""
