"""The session log and the answer ledger, durable."""
