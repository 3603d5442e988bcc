"""The protocol machines: events in, effects out; no I/O, no clock, no random numbers."""
