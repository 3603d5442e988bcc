"""What the server processes of one machine share: limits, metrics, messages."""
