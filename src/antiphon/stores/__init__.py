"""Where responses and items are kept."""
