"""The wire types of Anthropic's Messages API."""
