"""One question in each protocol that answers over HTTP: `responses`, `chat` and `messages`."""

import json
import urllib.error
import urllib.request
from typing import NamedTuple

PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions", "messages": "/v1/messages"}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGD4DwABBAEAwS2OUAAAAABJRU5ErkJggg=="
_DATA_URL = f"data:image/png;base64,{PIXEL}"
_IMAGES = {
    "responses": {"type": "input_image", "image_url": _DATA_URL},
    "chat": {"type": "image_url", "image_url": {"url": _DATA_URL}},
    "messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
}
_PARAMETERS = {"type": "object", "properties": {}}
_TOOLS = {
    "responses": {"type": "function", "name": "look", "parameters": _PARAMETERS, "strict": False},
    "chat": {"type": "function", "function": {"name": "look", "parameters": _PARAMETERS}},
    "messages": {"name": "look", "input_schema": _PARAMETERS},
}
_TEXT_TYPES = {"responses": "input_text", "chat": "text", "messages": "text"}


class Reply(NamedTuple):
    status: int
    headers: object
    body: bytes
    protocol: str

    @property
    def events(self):
        records = self.body.decode().strip().split("\n\n")
        lines = [line[6:] for record in records for line in record.splitlines() if line.startswith("data: {")]
        return [json.loads(line) for line in lines]

    @property
    def is_stream(self):
        return self.headers["content-type"].startswith("text/event-stream")

    @property
    def text(self):
        """The text of the answer, streamed or whole."""
        if self.is_stream:
            return "".join(self._delta(event) for event in self.events)
        body = json.loads(self.body)
        match self.protocol:
            case "responses":
                return "".join(part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"])
            case "chat":
                return body["choices"][0]["message"]["content"]
            case _:
                return "".join(block["text"] for block in body["content"] if block["type"] == "text")

    @property
    def model(self):
        """The model's name in the answer."""
        first = self.events[0] if self.is_stream else json.loads(self.body)
        return first.get("model") or first.get("response", first.get("message"))["model"]

    def _delta(self, event):
        match self.protocol:
            case "responses":
                return event["delta"] if event["type"] == "response.output_text.delta" else ""
            case "chat":
                return (event["choices"][0]["delta"].get("content") or "") if event.get("choices") else ""
            case _:
                return event["delta"].get("text", "") if event["type"] == "content_block_delta" else ""


def question(protocol, model, text="Hi", *, stream=False, image=False, tools=False, turns=(), **fields):
    """
    The body of a request.

    Args:
        turns: earlier texts, by the user and the model alternately.
    """
    content = [_IMAGES[protocol], {"type": _TEXT_TYPES[protocol], "text": text}] if image else text
    messages = [{"role": ("user", "assistant")[place % 2], "content": said} for place, said in enumerate(turns)]
    messages.append({"role": "user", "content": content})
    body = {"model": model, "stream": stream, "input" if protocol == "responses" else "messages": messages}
    if tools:
        body["tools"] = [_TOOLS[protocol]]
    return body | ({"max_tokens": 500} if protocol == "messages" else {}) | fields


def send(url, protocol, body, headers=None, path=None):
    """Post a body; `headers` in addition to its type."""
    told = {"content-type": "application/json", **(headers or {})}
    request = urllib.request.Request(url + (path or PATHS[protocol]), json.dumps(body).encode(), told)
    try:
        with urllib.request.urlopen(request) as reply:
            return Reply(reply.status, reply.headers, reply.read(), protocol)
    except urllib.error.HTTPError as error:
        return Reply(error.code, error.headers, error.read(), protocol)


def ask(url, protocol, model, text="Hi", *, headers=None, **how):
    """Ask a question; see `question` for how."""
    return send(url, protocol, question(protocol, model, text, **how), headers)
