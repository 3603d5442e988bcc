"""Background responses: made by tasks of the server, which outlive the connection that asked for them."""
