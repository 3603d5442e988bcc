"""Requests of Anthropic's clients, by plain HTTP."""

import json
import urllib.error
import urllib.request


def ask(base_url, method="POST", path="/v1/messages", body=None, **headers):
    """Status, headers and body, decoded; header names with underscores."""
    payload = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    told = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(base_url + path, payload, told, method=method)
    try:
        with urllib.request.urlopen(request) as reply:
            status, received, content = reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        status, received, content = error.code, error.headers, error.read()
    is_json = received.get("content-type", "").startswith("application/json")
    return status, received, json.loads(content) if is_json and content else content
