"""Routes for what operators see and do: keys, configuration, usage, the log, live sessions, and updates of all that."""
