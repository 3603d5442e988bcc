"""
The server of whatever tree is on the path, which notes when the stages of spoken answers are reached.

It puts itself between the cascade and the contracts of its parts (`Engine`, `Transcriber`, `Synthesizer`), which are the
same in older trees. It notes ids and times, and nothing that was said: `python staged_server.py FILE serve ...`.
"""

import contextlib
import json
import sys
import time

from msgspec import structs

from antiphon.__main__ import main
from antiphon.engine_api import commands, events
from antiphon.engines.cascade import engine as cascade


class Notes:
    def __init__(self, path):
        self.file = open(path, "w", buffering=1)

    def add(self, stage, at, **more):
        self.file.write(json.dumps({"stage": stage, "at": at, **more}) + "\n")


class Proxy:
    def __init__(self, inner, notes):
        self.inner, self.notes = inner, notes

    def __getattr__(self, name):
        return getattr(self.inner, name)


class TimedTranscriber(Proxy):
    async def transcribe(self, pcm, options):
        began_at = time.perf_counter()
        transcript = await self.inner.transcribe(pcm, options)
        self.notes.add("transcript", time.perf_counter(), began_at=began_at)
        return transcript


class TimedSynthesizer(Proxy):
    async def synthesize(self, *request, **options):
        self.notes.add("clause", time.perf_counter())
        is_first = True
        async with contextlib.aclosing(self.inner.synthesize(*request, **options)) as chunks:
            async for chunk in chunks:
                if is_first and chunk.pcm:
                    self.notes.add("sound", time.perf_counter())
                    is_first = False
                yield chunk


class TimedConversation(Proxy):
    def send(self, command):
        if isinstance(command, commands.Respond):
            self.notes.add("asked", time.perf_counter(), id=command.id)
        self.inner.send(command)


class TimedEngine(Proxy):
    @contextlib.asynccontextmanager
    async def open(self, settings, deliver):
        known = set()

        def note(batch):
            for event in batch:
                if isinstance(event, events.TextDelta) and event.id not in known:
                    known.add(event.id)
                    self.notes.add("text", time.perf_counter(), id=event.id)
            deliver(batch)

        async with self.inner.open(settings, note) as conversation:
            yield TimedConversation(conversation, self.notes)


class TimedCascade(cascade.Cascade):
    def __init__(self, inner, speech_stack, **options):
        transcriber, synthesizer = speech_stack.transcriber, speech_stack.synthesizer
        timed_stack = structs.replace(
            speech_stack,
            transcriber=transcriber and TimedTranscriber(transcriber, NOTES),
            synthesizer=synthesizer and TimedSynthesizer(synthesizer, NOTES),
        )
        super().__init__(TimedEngine(inner, NOTES), timed_stack, **options)


if __name__ == "__main__":
    NOTES = Notes(sys.argv.pop(1))
    cascade.Cascade = TimedCascade
    main()
