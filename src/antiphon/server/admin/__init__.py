"""Routes for operators: health, models, metrics, queue, recordings, documentation."""
