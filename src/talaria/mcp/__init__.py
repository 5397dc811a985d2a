"""MCP servers as a source of tools: settings, supervision, approval of tools, calls."""
