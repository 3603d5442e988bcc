"""Recording live sessions."""
