"""Anthropic's Messages API over HTTP."""
