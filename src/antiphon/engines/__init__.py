"""What answers: each engine turns `talk` words to words, whatever the client speaks."""
