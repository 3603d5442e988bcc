"""
What engines in front of a model server share: HTTP and WebSocket clients, connection pool, circuit breaker, errors.
"""
