"""Commands against a server with HTTPS: whom they trust, and what they say where they don't."""

import re
from urllib.parse import urlsplit

import pytest

from support.server.tls_server import serving_https


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    models = {"parrot": {"engine": "scripted", "answers": [{"when": "", "say": "You said: {input}"}]}}
    with serving_https(tmp_path_factory.mktemp("served"), models) as server:
        yield server


def test_a_server_elsewhere_is_trusted_by_the_file_of_its_authority(antiphon, server):
    url, ca_file = server
    result = antiphon("ask", "Hi", "--url", f"{url}/v1", ANTIPHON_CA_FILE=str(ca_file))
    assert (result.code, result.out) == (0, "You said: Hi\n"), result.err


def test_a_voice_session_trusts_it_as_well(antiphon, server):
    url, ca_file = server
    result = antiphon("duplex", "--sample", "--url", f"{url}/v1", ANTIPHON_CA_FILE=str(ca_file))
    assert result.code == 0 and "You said: speech of" in result.out, result.err


def test_a_server_of_this_home_folder_is_trusted_without_more(antiphon, home, server):
    url, ca_file = server
    folder = home / "data" / "tls"
    folder.mkdir(parents=True)
    (folder / "ca.crt").write_bytes(ca_file.read_bytes())
    port = str(urlsplit(url).port)
    by_port = antiphon("ask", "Hi", ANTIPHON_HOME=str(home / "data"), ANTIPHON_PORT=port)  # it runs with `--tls`, unlike what is configured
    configured = antiphon("ask", "Hi", ANTIPHON_HOME=str(home / "data"), ANTIPHON_PORT=port, ANTIPHON_SERVER__TLS="auto")
    by_url = antiphon("ask", "Hi", "--url", url, ANTIPHON_HOME=str(home / "data"))
    assert [result.out for result in (by_port, configured, by_url)] == ["You said: Hi\n"] * 3
    assert not by_port.err and not configured.err


def test_a_server_that_nobody_vouches_for_is_refused_with_the_way_out(antiphon, server):
    result = antiphon("ask", "Hi", "--url", server[0])
    assert result.code == 1 and "can't be trusted" in result.err and "ANTIPHON_CA_FILE" in result.err


def test_plain_http_to_it_is_a_mistake_that_is_named(antiphon, server):
    result = antiphon("ask", "Hi", "--url", server[0].replace("https", "http"))
    assert result.code == 1 and "HTTPS only" in result.err


def test_https_to_a_server_without_it_is_named_too(antiphon, tmp_path):
    with serving_https(tmp_path, **{"server.tls": "off"}) as (url, _):
        result = antiphon("ask", "Hi", "--url", url.replace("http", "https"))
    assert result.code == 1 and "Does that server speak HTTPS?" in result.err


def test_a_file_without_a_certificate_is_a_mistake(antiphon, server, tmp_path):
    (tmp_path / "empty.crt").write_text("nothing")
    for path in (tmp_path / "empty.crt", tmp_path / "none.crt"):
        result = antiphon("ask", "Hi", "--url", server[0], ANTIPHON_CA_FILE=str(path))
        assert result.code == 2 and f"no certificate in {path}" in result.err


def test_doctor_shows_the_certificates(antiphon, server, free_port):
    home = server[1].parent.parent
    found = {each["subject"]: each for each in antiphon("doctor", "--json", ANTIPHON_HOME=str(home), ANTIPHON_PORT=free_port).json}
    assert found["tls"]["detail"] == "off: plain HTTP"
    flags = {"ANTIPHON_HOME": str(home), "ANTIPHON_SERVER__TLS": "auto", "ANTIPHON_PORT": str(urlsplit(server[0]).port)}
    found = {each["subject"]: each for each in antiphon("doctor", "--json", **flags).json}
    assert re.search(r"ca\.crt, valid until \d{4}-\d\d-\d\d; .* until \d{4}-\d\d-\d\d, then renewed", found["tls"]["detail"])
    assert found["server"]["detail"].startswith("running at https://")
