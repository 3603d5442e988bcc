"""The speech models that the server has loaded, and what uses them."""
