"""Small random faults in the source, and whether the tests notice them: `./dev mutants`."""
