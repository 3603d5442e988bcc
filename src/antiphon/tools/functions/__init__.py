"""Functions of the operator, as a server of tools: each file of functions in a process of its own."""
