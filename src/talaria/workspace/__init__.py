"""The workspace that tools act on: the folder of a chat."""
