"""MCP servers: other people's tools, started once, supervised and contained."""
