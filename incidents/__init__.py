"""The table of docs/incidents.md, and the tests that it names."""
