"""A dialogue with a Responses session, whose engine is the test."""

import itertools

import msgspec

from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ServerError
from antiphon.protocols.responses.request import ResolvedRequest
from antiphon.protocols.responses.session import ResponsesSession
from antiphon.protocols.session import CallTool, Close, FromClient, FromEngine, FromTool, Persist, PersistFailed, Send, SendToEngine
from antiphon.protocols.tool_loop import LoopLimits
from antiphon.tool_api import NO_SERVER_TOOLS
from antiphon.wire.codec.types import encode
from antiphon.wire.responses import items
from antiphon.wire.responses.request import CreateRequest
from support.protocols.words import ID

ALL = Capabilities(
    images=True,
    tools=True,
    custom_tools=True,
    json_schema=True,
    max_top_logprobs=20,
    efforts=("low", "high"),
    summaries=True,
)


def order_for(**fields):
    given_items = fields.pop("given", (items.Message(role="user", content="Hi"),))
    past = fields.pop("past", ())
    capabilities = fields.pop("capabilities", ALL)
    server_tools, limits = fields.pop("server_tools", NO_SERVER_TOOLS), fields.pop("limits", LoopLimits())
    request = CreateRequest(**{"stream": True, **fields})
    return ResolvedRequest(
        id=ID,
        tenant="t",
        created_at=1000,
        model="m",
        request=request,
        capabilities=capabilities,
        input_items=given_items,
        previous_items=past,
        server_tools=server_tools,
        loop_limits=limits,
    )


NOISE = ["x" * length for length in range(16, 0, -1)]


def session_for(noise=None, route=None, **fields):
    numbers = itertools.count(1)
    return ResponsesSession(order_for(**fields), lambda prefix: f"{prefix}_{next(numbers)}", noise, route=route)


class Dialogue:
    """A session, and everything it did."""

    def __init__(self, session):
        self.session = session
        self.effects = session.handle(FromClient(None, 1000.0))

    def said(self, *words, at=1001.0):
        self.effects += self.session.handle(FromEngine(words, at))
        return self

    def tool_said(self, call_id, *events):
        for event in events:
            self.effects += self.session.handle(FromTool(ID, call_id, event, 1001.0))
        return self

    @property
    def tool_calls(self):
        """The calls that tools were asked to run."""
        return [effect.call for effect in self.effects if isinstance(effect, CallTool)]

    @property
    def requests(self):
        """What the model was asked, turn by turn."""
        return [effect.command for effect in self.effects if isinstance(effect, SendToEngine)]

    @property
    def is_closed(self):
        return any(isinstance(effect, Close) for effect in self.effects)

    def not_kept(self):
        """Make storing the last record fail; like the driver, drop what waited for it."""
        last = max(index for index, effect in enumerate(self.effects) if isinstance(effect, Persist))
        record = self.effects[last].record
        self.effects[last:] = [effect for effect in self.effects[last:] if isinstance(effect, SendToEngine)]
        self.effects += self.session.handle(PersistFailed(record, ServerError("full"), 1002.0))

    @property
    def events(self):
        return [msgspec.json.decode(encode(effect.event)) for effect in self.effects if isinstance(effect, Send)]

    @property
    def types(self):
        return [event["type"].removeprefix("response.") for event in self.events]

    @property
    def kept(self):
        return [effect.record for effect in self.effects if isinstance(effect, Persist)]
