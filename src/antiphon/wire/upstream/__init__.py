"""What model servers upstream send and take, read more tolerantly than what clients send."""
