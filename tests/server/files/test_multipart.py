"""Forms that no client would send, in pieces of any size."""

import time

import pytest
from hypothesis import given, strategies as st

from antiphon.errors import ClientError
from antiphon.server.files.multipart import MultipartScanner, PartEnd, PartHead
from antiphon.server.processes.run import background_server
from support.server.raw_http import connect, error_of, exchange, request, statuses
from support.server.scripted_server import configured

BOUNDARY = "b0undary"
FORM_TYPE = f"multipart/form-data; boundary={BOUNDARY}"
PURPOSE = ('form-data; name="purpose"', b"batch")
FILE = ('form-data; name="file"; filename="a.txt"', b"hello")


def form(*parts):
    body = b"".join(f"--{BOUNDARY}\r\ncontent-disposition: {head}\r\n\r\n".encode() + content + b"\r\n" for head, content in parts)
    return body + f"--{BOUNDARY}--\r\n".encode()


def scanned(chunks):
    """The parts of a form that comes in these chunks."""
    scanner, parts = MultipartScanner(BOUNDARY.encode()), []
    for chunk in chunks:
        for event in scanner.feed(chunk):
            match event:
                case PartHead():
                    parts.append([event, b"", False])
                case PartEnd():
                    parts[-1][2] = True
                case content:
                    parts[-1][1] += content
    scanner.end()
    return parts


@given(st.lists(st.sampled_from([b"\r", b"\n", b"-", b"--", b"\r\n--b0", b"x", BOUNDARY.encode()])).map(b"".join), st.data())
def test_a_part_comes_whole_however_the_form_is_cut(content, data):
    if f"\r\n--{BOUNDARY}".encode() in b"\r\n" + content:
        return
    body = b"preamble\r\n" + form(PURPOSE, (FILE[0], content)) + b"epilogue"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    chunks = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert scanned(chunks) == [[PartHead("purpose", None), b"batch", True], [PartHead("file", "a.txt"), content, True]]


def test_a_name_that_is_not_ascii_comes_in_either_form():
    plain, extended = 'form-data; name="file"; filename="ä.txt"', "form-data; name=file; filename*=UTF-8''%C3%A4.txt"
    assert [head.filename for head, *_ in scanned([form((plain, b"x"), (extended, b"x"))])] == ["ä.txt", "ä.txt"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing of the kind",
        form(PURPOSE)[:-4],
        f"--{BOUNDARY}more\r\n".encode(),
        f"--{BOUNDARY}{' ' * 300}".encode(),
        f"--{BOUNDARY}\r\n\r\nno head\r\n--{BOUNDARY}--".encode(),
        form(("attachment; name=file", b"")),
        form(("form-data", b"")),
        form((f'form-data; name="{"x" * 9000}"', b"")),
        f"--{BOUNDARY}\r\nx: {'y' * 100_000}".encode(),
        form(*[PURPOSE] * 33),
    ],
)
def test_what_is_no_form_is_refused(body):
    with pytest.raises(ClientError):
        scanned([body])


def test_a_form_of_line_breaks_alone_takes_no_longer_than_another():
    def seconds(content):
        started_at = time.process_time()
        scanned([form((FILE[0], content))[start : start + 65_536] for start in range(0, len(content) + 500, 65_536)])
        return time.process_time() - started_at

    plain = seconds(b"x" * (4 << 20))
    assert seconds(b"\r\n" * (2 << 20)) < 0.5 + 20 * plain


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    limits = {"files.upload_mib": 1, "server.body_timeout_s": 1, "logging.level": "error"}
    with background_server(configured(tmp_path_factory.mktemp("home"), {"parrot": {"engine": "scripted"}}, **limits)) as url:
        yield url


def posted(url, body, content_type=FORM_TYPE, **headers):
    answer = exchange(url, request("POST", "/v1/files", body, connection="close", content_type=content_type, **headers))
    return statuses(answer)[0], error_of(answer) if statuses(answer) != [200] else None


def files(url):
    return exchange(url, request(path="/v1/files", connection="close")).partition(b"\r\n\r\n")[2]


NO_FILES = b'{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}'


@pytest.mark.parametrize(
    ("body", "content_type", "code", "param"),
    [
        (form(PURPOSE, FILE), "multipart/form-data", "invalid_multipart_form", None),
        (form(PURPOSE, FILE), f"multipart/form-data; boundary={'x' * 300}", "invalid_multipart_form", None),
        (form(PURPOSE, FILE), "application/json", "unsupported_content_type", None),
        (form(PURPOSE, FILE), None, "unsupported_content_type", None),
        (form(*[PURPOSE] * 10_000), FORM_TYPE, "invalid_multipart_form", None),
        (form(("form-data; name=purpose", b"x" * 5000), FILE), FORM_TYPE, "invalid_multipart_form", None),
        (form(PURPOSE, FILE, FILE), FORM_TYPE, None, "file"),
        (form(PURPOSE, ('form-data; name="other"; filename="a"', b"x")), FORM_TYPE, None, "file"),
        (form(PURPOSE, ('form-data; name="file"', b"x")), FORM_TYPE, "missing_required_parameter", "file"),
        (form(FILE), FORM_TYPE, "missing_required_parameter", "purpose"),
        (form(FILE, ("form-data; name=purpose", b"b\xff")), FORM_TYPE, "invalid_value", "purpose"),
        (form(PURPOSE, FILE)[:-4], FORM_TYPE, "invalid_multipart_form", None),
    ],
)
def test_a_wrong_form_is_refused_by_name_and_leaves_nothing(url, body, content_type, code, param):
    status, error = posted(url, body, content_type)
    assert (status, error["code"], error["param"], error["type"]) == (400, code, param, "invalid_request_error")
    assert files(url) == NO_FILES


def test_a_compressed_form_is_refused(url):
    assert posted(url, form(PURPOSE, FILE), content_encoding="gzip")[0] == 415


def test_a_form_of_unknown_length_is_taken_up_to_the_limit(url):
    def chunked(content):
        body = form(PURPOSE, (FILE[0], content))
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[at : at + 60_000]), body[at : at + 60_000]) for at in range(0, len(body), 60_000))
        head = request("POST", "/v1/files", connection="close", content_type=FORM_TYPE, transfer_encoding="chunked")
        return exchange(url, head, chunks + b"0\r\n\r\n")

    refusal = chunked(b"x" * ((1 << 20) + 1))
    assert statuses(refusal) == [413] and error_of(refusal)["code"] == "file_too_large"
    assert files(url) == NO_FILES
    answer = chunked(b"x" * 100_000)
    assert statuses(answer) == [200]
    id = answer.partition(b'"id":"')[2].partition(b'"')[0].decode()
    assert statuses(exchange(url, request("DELETE", f"/v1/files/{id}", connection="close"))) == [200]


def test_an_upload_that_stops_midway_leaves_nothing(url, tmp_path):
    body = form(PURPOSE, (FILE[0], b"x" * 200_000))
    with connect(url) as connection:  # it hangs up
        connection.sendall(request("POST", "/v1/files", body, content_type=FORM_TYPE)[:100_000])
    head = request("POST", "/v1/files", body, content_type=FORM_TYPE)
    assert statuses(exchange(url, head[:100_000])) == [408]  # it sends no more
    assert files(url) == NO_FILES
