"""What upstream model servers send and take, read more leniently than what clients send."""
