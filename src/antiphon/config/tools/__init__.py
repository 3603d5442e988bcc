"""The settings of the tools that the server runs; `settings` has them all, and each tool's own are in a file of its name."""
