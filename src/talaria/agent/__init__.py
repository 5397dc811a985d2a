"""The loop, the frozen prompt and the transcript of bytes."""
