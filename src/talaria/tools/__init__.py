"""The immutable tool set, its execution, and one file per family."""
