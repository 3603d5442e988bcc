"""Certificates, for upstreams behind TLS."""

import shutil
import subprocess

import pytest


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A private authority, and a server's certificate and key by it."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    folder = tmp_path_factory.mktemp("tls")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for command in (
        ["req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Test authority", "-days", "2"],
        ["req", *new, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=upstream"],
        ["x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-out", "server.pem", "-days", "2", "-extfile", "names"],
    ):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
    return folder
