"""What runs sessions: the driver, the registry of models, and the way from a request to a session."""
