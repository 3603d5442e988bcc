"""The page from another machine: with `--tls auto` browsers give it a microphone, without it they don't."""

import base64
import contextlib
import hashlib
import re
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from support.console.browser import Visit, chromium
from support.server.tls_server import OTHER_NAME, serving_https

pytestmark = pytest.mark.usefixtures("no_browser")

MODELS = {"host": {"engine": "scripted", "hears": [{"says": "Hello."}], "answers": [{"when": "", "say": "Good day."}]}}

HEARS = re.compile("Listening|Hearing you")
"""The made-up microphone beeps: what it plays may count as speech within moments, and for good."""


def key_hash(server_file):
    """What Chromium takes as trust in a certificate; none of its stores can be filled without more programs."""
    key = x509.load_pem_x509_certificate(server_file.read_bytes()).public_key()
    return base64.b64encode(hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()).decode()


@contextlib.contextmanager
def visiting(tmp_path, tls):
    """The page, opened by a name that is not this machine's."""
    with serving_https(tmp_path, MODELS, **{"server.tls": tls}) as (url, ca_file):
        trust = [] if tls == "off" else [f"--ignore-certificate-errors-spki-list={key_hash(ca_file.parent / 'server.pem')}"]
        media = ("--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream")
        with chromium(*media, f"--host-resolver-rules=MAP {OTHER_NAME} 127.0.0.1", *trust) as browser:
            visit = Visit(browser, f"{urlsplit(url).scheme}://{OTHER_NAME}:{urlsplit(url).port}")
            visit.expect("ScriptProcessorNode")
            yield visit
            visit.close()


@pytest.mark.parametrize("tls", ["auto", pytest.param("off", marks=pytest.mark.long)])
def test_a_page_elsewhere_has_a_microphone_where_the_server_speaks_https(tmp_path, tls):
    with visiting(tmp_path, tls) as visit:
        page = visit.go("talk").page
        page.get_by_role("button", name="Model: host").wait_for()
        assert page.evaluate("[isSecureContext, 'mediaDevices' in navigator]") == [tls == "auto"] * 2
        big = page.locator("button.big")
        big.filter(has_text="Talk").click()
        if tls == "auto":
            big.filter(has_text=HEARS).wait_for()
        else:
            page.get_by_text("antiphon serve --tls auto").wait_for()
            visit.expect("Cross-Origin-Opener-Policy header has been ignored")  # as it is on every page without HTTPS


@pytest.mark.long
def test_who_types_the_address_without_https_gets_there_all_the_same(tmp_path):
    with visiting(tmp_path, "auto") as visit:
        visit.page.goto(visit.url.replace("https", "http"))
        assert visit.page.url.startswith(visit.url)
        visit.page.get_by_role("navigation").first.wait_for()
        visit.troubles.clear()  # the first request went to the other scheme, on purpose
