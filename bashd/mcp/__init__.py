"""The tools as an MCP server, on the official SDK; the only importer of it."""
