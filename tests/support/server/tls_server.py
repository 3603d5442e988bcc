"""A server with HTTPS, as clients on other machines see it."""

import contextlib
import ssl

from antiphon.server.processes.run import background_server
from support.server.scripted_server import SCRIPT, configured

OTHER_NAME = "antiphon.test"
"""A name that clients may use, and that no machine has."""


@contextlib.contextmanager
def serving_https(tmp_path, models=None, **settings):
    """A server with `tls = "auto"`: its address, and the file of its authority."""
    flags = {"server.tls": "auto", "server.allowed_hosts": OTHER_NAME, "logging.level": "error"} | settings
    config = configured(tmp_path, models or {"parrot": {"engine": "scripted", **SCRIPT}}, **flags)
    with background_server(config, is_persistent=True) as url:
        yield url, config.ca_file


def trusting(ca_file, **options):
    """The TLS of a client that trusts this authority alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca_file)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    for name, value in options.items():
        setattr(context, name, value)
    return context
