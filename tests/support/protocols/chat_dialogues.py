"""A dialogue with a chat session, whose engine is the test."""

import itertools

import msgspec

from antiphon.engine_api.capabilities import Capabilities
from antiphon.protocols.chat.request import ResolvedChat
from antiphon.protocols.chat.session import ChatSession
from antiphon.protocols.session import Close, FromClient, FromEngine, Send, SendToEngine
from antiphon.wire.chat.request import decode_chat_request
from antiphon.wire.chat.stream import ChunkEncoder
from antiphon.wire.codec.types import encode
from support.protocols.words import ID

ALL = Capabilities(
    images=True,
    files=True,
    audio_in=True,
    audio_out=True,
    tools=True,
    custom_tools=True,
    grammars=True,
    json_object=True,
    json_schema=True,
    penalties=True,
    max_top_logprobs=20,
    efforts=("low", "high"),
    verbosities=("low", "high"),
    context_window=4096,
)


def chat(capabilities=ALL, documents=None, transcripts=None, **fields):
    """A chat that asks "Hi" unless it has messages."""
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    return ResolvedChat(
        id="chatcmpl-1",
        response_id=ID,
        created_at=1000,
        model="m",
        request=decode_chat_request(msgspec.json.encode(body)),
        capabilities=capabilities,
        documents=documents or {},
        transcripts=transcripts or {},
    )


class ChatDialogue:
    """A session, and everything it did."""

    def __init__(self, capabilities=ALL, **fields):
        numbers = itertools.count(1)
        self.chat = chat(capabilities, **fields)
        self.session = ChatSession(self.chat, lambda prefix: f"{prefix}_{next(numbers)}")
        self.effects = self.session.handle(FromClient(self.chat, 1000.0))

    def hears(self, *words):
        self.effects += self.session.handle(FromEngine(words, 1001.0))
        return self

    def does(self, event):
        self.effects += self.session.handle(event)
        return self

    @property
    def commands(self):
        return [effect.command for effect in self.effects if isinstance(effect, SendToEngine)]

    @property
    def close(self):
        """The one `Close`, which comes last; None before."""
        closes = [effect for effect in self.effects if isinstance(effect, Close)]
        assert len(closes) <= 1 and (not closes or self.effects[-1] is closes[0])
        return closes[0] if closes else None

    @property
    def completion(self):
        (sent,) = [effect.event for effect in self.effects if isinstance(effect, Send)]
        return msgspec.json.decode(encode(sent))

    @property
    def chunks(self):
        """The chunks as they are written, and an error as its body."""
        request = self.chat.request
        encoder = ChunkEncoder("chatcmpl-1", 1000, "m", choice_count=request.choice_count, includes_usage=request.includes_usage)
        out = bytearray()
        encoder.encode_sse_into([effect.event for effect in self.effects if isinstance(effect, Send)], out)
        records = bytes(out).decode().split("\n\n")
        assert records.pop() == ""
        assert all(record.startswith("data: ") and "\n" not in record for record in records)
        return [msgspec.json.decode(record.removeprefix("data: ")) for record in records]

    def deltas(self, index=0):
        """What the chunks add to a choice."""
        return [each["delta"] for chunk in self.chunks if "choices" in chunk for each in chunk["choices"] if each["index"] == index]


def put_together(chunks):
    """The messages and finish reasons that a client makes of chunks, with as few checks as the simplest clients have."""
    choices = {}
    for chunk in chunks:
        for each in chunk["choices"]:
            choice = choices.setdefault(each["index"], {"calls": [], "finish_reason": None})
            assert choice["finish_reason"] is None, "something follows the end of a choice"
            delta = each["delta"]
            assert "role" in choice or "role" in delta, "missing role"
            for name in ("role", "content", "refusal", "reasoning_content"):
                if delta.get(name) is not None:
                    choice[name] = choice.get(name, "") + delta[name]
            for call in delta.get("tool_calls", ()):
                index = call["index"]
                assert index in (len(choice["calls"]) - 1, len(choice["calls"])), "calls are mixed"
                if index == len(choice["calls"]):
                    assert set(call) == {"index", "id", "type", call["type"]}
                    choice["calls"].append({"id": call["id"], "name": call[call["type"]]["name"], "text": ""})
                more = call.get("function") or call.get("custom")
                choice["calls"][index]["text"] += more.get("arguments", more.get("input", ""))
            choice["finish_reason"] = each["finish_reason"]
    return choices
