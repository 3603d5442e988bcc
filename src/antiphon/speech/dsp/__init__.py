"""Signal processing: resampling and noise suppression."""
