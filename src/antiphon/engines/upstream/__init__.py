"""What engines share that ask a model server: HTTP and WebSocket clients, connection pool, circuit breaker, errors."""
