"""The certificates of the world's authorities, which no test needs in its own process: none dials outside this machine."""

import contextlib
import ssl

import httpcore2
import pytest


@contextlib.contextmanager
def left_out():
    """A client of HTTP is made without reading them, which takes it 35 ms of processor time. Programs that tests start read them."""

    def trusting_nobody(**_options):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
        return context

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: None)
        patch.setattr(httpcore2, "default_ssl_context", trusting_nobody)
        yield
