"""
An engine that answers from a script, at the script's pace: for tests, benchmarks and machines without a model.

A script is a list of answers; the first whose `when` matches the last turn is given. Without a script it repeats the
input. `docs/reference/engine-scripted.md` describes every key.

It listens, speaks and plays full duplex without `engines/cascade` and `engines/duplex`. The cascade needs numpy, soxr
and onnxruntime, and finds speech by frames of 32 ms; the adapter paces answers for a player. A script sets times to the
millisecond, and full duplex to the input chunk. It also stands in for an engine that has full duplex of its own: that
starts late, speaks unasked, or is lost. With `listens` and `audio_out`, or `full_duplex`, taken from its `abilities` it
is put into either like any other engine.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, Deliver, EngineConversation, EngineOverrun, deliver_nowhere
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.scripted.answers import count_input_tokens, response_steps
from antiphon.engines.scripted.duplex import ScriptedDuplex
from antiphon.engines.scripted.listening import ScriptedSpeechInput
from antiphon.engines.scripted.script import ALL_CAPABILITIES, Script as Script, load_script
from antiphon.engines.scripted.voice import ScriptedRecordings
from antiphon.offload import offload


def build(model: str, options: Mapping[str, Any], build_context: BuildContext) -> "ScriptedEngine":
    """
    A scripted engine from the model's table in the configuration.

    Raises:
        ServerError: the script or a recording can't be read, or has an unknown key.
    """
    return ScriptedEngine(*load_script(model, options, build_context))


class ScriptedEngine:
    """An engine that answers from its script."""

    def __init__(self, script: Script, capabilities: Capabilities = ALL_CAPABILITIES, recordings: ScriptedRecordings | None = None) -> None:
        self.capabilities = capabilities
        self._script = script
        self._recordings = recordings or ScriptedRecordings(Path())

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def count(self, request: commands.Respond) -> int:
        """One token per word, as in every answer that claims no usage of its own."""
        return (await offload(request.size_bytes, count_input_tokens, request))[0]

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """A conversation in which every `Respond` is answered from the script."""
        async with asyncio.TaskGroup() as tasks:
            conversation = _ScriptedConversation(self._script, self._recordings, deliver, tasks)
            try:
                yield conversation
            finally:
                conversation.close()


class _ScriptedConversation:
    """Plays answers and transcripts, each in a task of its own."""

    MAX_RESPONSES = 64
    MAX_BATCH_EVENTS = 1000
    """After so many events at once, other tasks have their turn."""

    def __init__(self, script: Script, recordings: ScriptedRecordings, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self._script = script
        self._recordings = recordings
        self._deliver: Deliver = deliver
        self._tasks = tasks
        self._speech_input = ScriptedSpeechInput(script, self._emit, self._transcribe)
        self._duplex: ScriptedDuplex | None = None
        self._response_tasks: dict[str, asyncio.Task[None]] = {}
        self._transcript_tasks: set[asyncio.Task[None]] = set()
        self._may_speak = asyncio.Event()
        self._may_speak.set()
        self._is_closed = False

    def send(self, command: commands.EngineCommand) -> None:
        match command:
            case commands.StartDuplex() | commands.AppendImage() | commands.ForceListen():
                self._send_duplex(command)
            case commands.AppendAudio() if self._duplex is not None:
                self._duplex.send(command)
            case commands.AppendAudio() | commands.Configure():
                self._speech_input.send(command)
            case commands.CommitAudio(id):
                self._speech_input.commit(id)
            case commands.ClearAudio():
                self._speech_input.clear()
            case commands.Respond():
                self._respond(command)
            case commands.Cancel(id):
                if id in self._response_tasks:
                    self._response_tasks[id].cancel()
            case commands.Prepare() | commands.Relay():
                pass  # a script needs no preparation; its capabilities relay nothing

    def _send_duplex(self, command: commands.StartDuplex | commands.AppendImage | commands.ForceListen) -> None:
        if not isinstance(command, commands.StartDuplex):
            if self._duplex is not None:
                self._duplex.send(command)
        elif self._duplex is None:
            self._duplex = ScriptedDuplex(self._script, self._recordings, command, self._emit)

    def pause(self) -> None:
        self._may_speak.clear()
        if self._duplex is not None:
            self._duplex.pause()

    def resume(self) -> None:
        self._may_speak.set()
        if self._duplex is not None:
            self._duplex.resume()

    def close(self) -> None:
        """Deliver nothing more."""
        self._is_closed = True
        self._deliver = deliver_nowhere
        self._speech_input.close()
        if self._duplex is not None:
            self._duplex.close()
        for task in (*self._response_tasks.values(), *self._transcript_tasks):
            task.cancel()

    def _respond(self, request: commands.Respond) -> None:
        if len(self._response_tasks) >= self.MAX_RESPONSES:
            raise EngineOverrun(f"{self.MAX_RESPONSES} responses are in progress already")
        steps = response_steps(self._script, self._recordings, request, self._speech_input.transcripts)
        task = self._response_tasks[request.id] = self._tasks.create_task(self._play_steps(steps, request.size_bytes))
        task.add_done_callback(partial(self._on_response_done, request.id))

    def _on_response_done(self, id: str, task: asyncio.Task[None]) -> None:
        # In a callback, not in the task: a task that is cancelled before its first step runs none of its code.
        if self._response_tasks.get(id) is task:  # else the same response goes on with another turn
            del self._response_tasks[id]
        if task.cancelled():
            self._emit((engine_events.ResponseEnded(id, "cancelled"),))

    def _transcribe(self, steps: Iterable[engine_events.EngineEvent | float]) -> None:
        task = self._tasks.create_task(self._play_steps(steps))
        self._transcript_tasks.add(task)
        task.add_done_callback(self._transcript_tasks.discard)

    async def _play_steps(self, steps: Iterable[engine_events.EngineEvent | float], size_bytes: int = 0) -> None:
        """
        Deliver the events at their times.

        Args:
            size_bytes: of the request; the last step counts the words of a large one.
        """
        pace_s = self._script.pace_ms / 1000
        batch: list[engine_events.EngineEvent] = []
        steps = iter(steps)
        while (step := await offload(size_bytes, next, steps, None)) is not None:
            if isinstance(step, float):
                self._emit(batch)
                batch = []
                await asyncio.sleep(step)
                continue
            batch.append(step)
            if pace_s or len(batch) == self.MAX_BATCH_EVENTS:
                await self._may_speak.wait()
                self._emit(batch)
                batch = []
                await asyncio.sleep(pace_s)
        await self._may_speak.wait()
        self._emit(batch)

    def _emit(self, events: Sequence[engine_events.EngineEvent]) -> None:
        if events and not self._is_closed:
            self._deliver(events)
