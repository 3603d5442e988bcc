"""What everything in `runtime` shares: the driver, taps, metrics, ids, live sessions."""
