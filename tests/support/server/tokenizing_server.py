"""Model servers in a thread that count tokens as vLLM or llama.cpp do: a word is a token."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WINDOW = 1200


def words(messages, tools=()):
    """The tokens of a conversation: its words, those of its calls, and five for the markup of each message and tool."""
    texts = [str(message.get("content") or "") for message in messages]
    calls = [call["function"]["arguments"] for message in messages for call in message.get("tool_calls", ())]
    return sum(len(text.split()) for text in (*texts, *calls)) + 5 * (len(messages) + len(tools))


def rendered(body):
    """The conversation as one text of as many words."""
    return "w " * words(body["messages"], body.get("tools", ()))


def completed(body, window):
    """The answer of chat completions: the number of prompt tokens, or a refusal."""
    count = words(body["messages"], body.get("tools", ()))
    if count > window:
        message = f"This model's maximum context length is {window} tokens. However, your request has {count} input tokens."
        return 400, {"error": {"message": message, "type": "BadRequestError", "code": 400}}
    choice = {"index": 0, "message": {"role": "assistant", "content": f"{count} tokens"}, "finish_reason": "stop"}
    return 200, {"object": "chat.completion", "choices": [choice]}


def answers(kind, window):
    """The answers of a kind of server, by path."""
    always = {"/v1/chat/completions": lambda body: completed(body, window)}
    counting = {
        "vllm": {"/tokenize": lambda body: (200, {"count": words(body["messages"], body.get("tools", ())), "max_model_len": window})},
        "llamacpp": {
            "/props": lambda _body: (200, {"default_generation_settings": {"n_ctx": window}}),
            "/apply-template": lambda body: (200, {"prompt": rendered(body)}),
            "/tokenize": lambda body: (200, {"tokens": [7] * len(body["content"].split())}),
        },
        "responses": {"/v1/responses/input_tokens": lambda _body: (200, {"object": "response.input_tokens", "input_tokens": 4321})},
    }
    return always | counting.get(kind, {})


@contextlib.contextmanager
def tokenizing(kind, window=WINDOW):
    """
    A server that answers with the number of prompt tokens, and refuses more than `window`.

    Args:
        kind: `vllm`, `llamacpp` or `responses`; any other has no endpoints for counting.

    Yields:
        Its address, and its requests, as path and body.
    """
    asked, answer_by_path = [], answers(kind, window)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            asked.append((self.path, body))
            answer = answer_by_path.get(self.path, lambda _body: (404, {"error": {"message": "Not Found"}}))
            status, content = answer(body)
            encoded = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
