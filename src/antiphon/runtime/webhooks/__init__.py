"""Webhooks: events of background responses, sent to the endpoints of the configuration."""
