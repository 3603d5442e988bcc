"""
One self-hosted server for every conversation protocol AI clients use, in front of any engine.

The parts that stand on their own as a library: `antiphon.wire` (typed messages of each protocol), `antiphon.protocols`
(the protocol machines, free of I/O) and `antiphon.engines` (what answers).
"""

__version__ = "0.1.0"
