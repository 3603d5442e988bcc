"""
Web search: `kind` has the rows of the toolbox, `tool` runs the calls of one response.

Providers (`searxng`, `brave`, `tavily`, `local_index`) implement one interface, which is in `base`.
"""
