"""The tool `mcp`: the tools of servers that speak the Model Context Protocol, and whatever else lists tools and calls one."""
