"""The engine `worker`: an engine in another process or on another machine, over a link."""
