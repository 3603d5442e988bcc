"""The routes for operators: health, metrics, queue, recordings, documentation."""
