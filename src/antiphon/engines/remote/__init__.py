"""The engine in another process or on another machine, reached over a link."""
