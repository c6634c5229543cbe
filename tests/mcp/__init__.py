"""The MCP server, driven by clients nobody here wrote."""
