"""The scheduler: it writes the slots of jobs that have come, claims them, and starts their runs."""
