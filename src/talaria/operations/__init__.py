"""Operations: requests that people and programs can make, declared once for HTTP, command line and MCP."""
