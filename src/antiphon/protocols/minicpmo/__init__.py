"""The MiniCPM-o Realtime protocol as a protocol machine."""

from antiphon.protocols.minicpmo.config import MinicpmoSessionConfig as MinicpmoSessionConfig
from antiphon.protocols.minicpmo.session import MinicpmoSession as MinicpmoSession
