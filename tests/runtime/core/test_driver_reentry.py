"""Engines may deliver while a session's command is being sent to them: the driver handles that next, never in between."""

import asyncio
import contextlib

from antiphon.engine_api import commands, events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import EngineOverrun
from antiphon.engine_api.options import ConversationSettings
from antiphon.protocols.session import Close, FromEngine, Send, SendToEngine
from antiphon.runtime.core.driver import Driver
from antiphon.stores.memory import MemoryStore


class Session:
    """Asks twice in one go, and closes with the second answer; notes whether it was entered while it decided or was performed."""

    def __init__(self):
        self.batches = []
        self._answers = 0

    def handle(self, event):
        if not isinstance(event, FromEngine):
            requests = [SendToEngine(commands.Respond(id=id, history=())) for id in ("resp_1", "resp_2")]
            return [*requests, Send("both were asked")]
        self.batches.append([type(each).__name__ for each in event.events])
        self._answers += 1
        return [Send(f"answer {self._answers}"), *([Close()] if self._answers == 2 else [])]


class Client:
    def __init__(self):
        self.sent = []
        self.flushed = []

    def send(self, event):
        self.sent.append(event)

    def flush(self):
        self.flushed.append(len(self.sent))

    def close(self, error):
        self.sent.append("closed")


class AnswersAtOnce:
    """Delivers from within `send`, or has no room and says so there."""

    capabilities = Capabilities()

    def __init__(self, has_room):
        self._has_room = has_room

    @contextlib.asynccontextmanager
    async def open(self, settings, deliver):
        self._deliver = deliver
        yield self

    def send(self, command):
        if not self._has_room:
            raise EngineOverrun("there is no room")
        self._deliver((events.ResponseEnded(command.id),))

    def pause(self):
        pass

    def resume(self):
        pass


def play(engine):
    session, client = Session(), Client()
    driver = Driver(session, client, MemoryStore())
    asyncio.run(driver.run(engine, ConversationSettings(model="m"), "hello"))
    return session, client


def test_what_is_delivered_from_within_send_is_handled_after_all_effects_of_before():
    session, client = play(AnswersAtOnce(has_room=True))
    assert session.batches == [["ResponseEnded"], ["ResponseEnded"]]
    assert client.sent == ["both were asked", "answer 1", "answer 2", "closed"]
    assert client.flushed == [4]  # and leaves in one write


def test_a_command_for_which_there_is_no_room_fails_after_all_effects_of_before():
    session, client = play(AnswersAtOnce(has_room=False))
    assert session.batches == [["ResponseFailed"], ["ResponseFailed"]]
    assert client.sent == ["both were asked", "answer 1", "answer 2", "closed"]
