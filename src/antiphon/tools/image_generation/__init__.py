"""Makes and changes pictures for the model, through servers with the Images API."""
