"""The command line: arguments to configuration to a run. The only reader of arguments and environment."""
