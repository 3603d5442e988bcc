"""A model of this machine that makes vectors of texts, and answers nothing."""
