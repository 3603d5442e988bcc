"""What the suites in Python leave out: most of the time of small requests is that of imports and of clients that are made."""

import gc
import os

# The types of a client are thousands, and none is garbage: while they load, the collector would look at them again and again.
gc.disable()

# All servers are on loopback, without TLS. A client that is made reads the certificates of all authorities, which takes 50 ms, unless they
# are in a folder, where each would be looked up by its name.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.path.dirname(__file__)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()
