"""The types that all packages share: ids, messages, entries, sessions, turns, events, errors, ports. Pure."""
