"""The TLS of a server that starts. What makes certificates loads slowly, and few servers need it."""

import importlib
import ssl
from collections.abc import Callable

from antiphon.config.load import Config


def server_tls(config: Config) -> Callable[[], ssl.SSLContext] | None:
    """
    Gives the context of each new connection; None where the configuration wants no TLS.

    Raises:
        ServerError: the certificates can't be read or made.
    """
    if config.server.tls == "off":
        return None
    context: Callable[[], ssl.SSLContext] = importlib.import_module("antiphon.server.tls.certificates").ServerTls(config).context
    return context
