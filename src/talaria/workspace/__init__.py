"""What tools act on: the folder of a chat."""
