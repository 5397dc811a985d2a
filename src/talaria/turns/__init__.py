"""The line a message travels: intake, mailbox, runner, recovery."""
