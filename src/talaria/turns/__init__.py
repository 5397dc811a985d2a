"""The line a message travels: intake, lanes, runner, delivery, recovery."""
