"""Who answers a request: one of a model's upstreams, or another model."""
