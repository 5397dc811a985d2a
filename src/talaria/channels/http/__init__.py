"""The HTTP API: OpenAI-compatible calls and Talaria's own."""
