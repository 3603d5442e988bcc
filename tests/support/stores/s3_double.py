"""The part of S3 that stores files, over HTTP on this machine; it accepts any signature."""

import contextlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Lost(bytes):
    """The content of an object that is listed and can't be read."""


class _Bucket(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments):
        pass

    def _answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @property
    def _key(self):
        return unquote(urlsplit(self.path).path).removeprefix("/")

    @property
    def _query(self):
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    def _body(self):
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def do_PUT(self):
        assert self.headers["authorization"].startswith("AWS4-HMAC-SHA256 ")
        if "uploadId" in self._query:
            self.server.uploads[self._query["uploadId"][0]][int(self._query["partNumber"][0])] = self._body()
        else:
            self.server.objects[self._key] = self._body()
        self._answer(200, etag='"1"')

    def do_DELETE(self):
        del self.server.uploads[self._query["uploadId"][0]]
        self._answer(204)

    def do_POST(self):
        if "delete" not in self._query:
            return self._upload_parts()
        bucket = self._key.partition("/")[0]
        keys = re.findall(r"<Key>(.*?)</Key>", self._body().decode())
        for key in keys:
            self.server.objects.pop(f"{bucket}/{key}", None)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), content_type="application/xml")

    def _upload_parts(self):
        """The start and the end of a multipart upload."""
        if "uploads" in self._query:
            id = str(len(self.server.uploads) + 1)
            self.server.uploads[id] = {}
            body = f"<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
        else:
            self._body()
            parts = self.server.uploads.pop(self._query["uploadId"][0])
            assert all(len(part) >= 5 << 20 for number, part in parts.items() if number < max(parts)), "S3 takes no smaller parts"
            self.server.objects[self._key] = b"".join(part for _, part in sorted(parts.items()))
            body = "<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"
        self._answer(200, body.encode(), content_type="application/xml")

    def do_GET(self):
        if "list-type" in self._query:
            self._list()
        elif isinstance(self.server.objects.get(self._key, Lost()), Lost):
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._send(self.server.objects[self._key])

    def _send(self, content):
        common = {"etag": '"1"', "last_modified": "Sat, 01 Jan 2000 00:00:00 GMT"}
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if match is None:
            return self._answer(200, content, **common)
        start, end = int(match[1]), min(int(match[2] or len(content)) + 1, len(content))
        return self._answer(206, content[start:end], content_range=f"bytes {start}-{end - 1}/{len(content)}", **common)

    def _list(self):
        bucket, prefix = self._key.partition("/")[0], self._query.get("prefix", [""])[0]
        found = [(key.removeprefix(f"{bucket}/"), len(content)) for key, content in sorted(self.server.objects.items())]
        entries = "".join(
            f'<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>"1"</ETag><LastModified>2000-01-01T00:00:00.000Z</LastModified></Contents>'
            for key, size in found
            if key.startswith(prefix)
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()
        self._answer(200, body, content_type="application/xml")


@contextlib.contextmanager
def s3():
    """A running S3 server; yields its address and its objects by bucket and key."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Bucket) as server:
        server.objects, server.uploads = {}, {}
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", server.objects
        server.shutdown()
        thread.join()
