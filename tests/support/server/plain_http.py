"""Plain HTTP requests, without the checks of a client library."""

import json
import urllib.error
import urllib.request

TIMEOUT_S = 120
"""Only a defect reaches it, however busy the machine is."""


def post(base_url, body, path="/v1/responses"):
    """Status, headers and body of a POST; `body` is made JSON."""
    request = urllib.request.Request(base_url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def events_in(body):
    """The events of a stream's body."""
    records = body.decode().removesuffix("\n\n").split("\n\n")
    return [json.loads(record.partition("\ndata: ")[2]) for record in records if record.startswith("event: ")]
