"""What things are: ids, messages, entries, sessions, turns, events, errors and every port. Pure."""
