"""The store on SQLite: one machine, one writer thread with group commit, readers beside it."""
