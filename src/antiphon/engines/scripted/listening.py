"""
The speech input of a scripted engine: the clock of its audio, the turns in it, and their transcripts.

Turns are detected on the loop's next iteration, so that a turn is found and delivered in one step. A commit or clear
before that ends or drops the waiting audio with the rest, as its sender knows of no turn in it.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from msgspec import structs

from antiphon.audio import SAMPLE_BYTES
from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import Deliver, deliver_nowhere
from antiphon.engines.scripted.answers import certain_token, placeholder_transcript, split_words
from antiphon.engines.scripted.script import Script, ScriptedTranscript
from antiphon.engines.scripted.turn_detection import LevelVad, ScheduledVad, ScriptedVad

PlaySteps = Callable[[Iterable[events.EngineEvent | float]], None]
"""Plays events, with pauses in seconds between them, at the script's pace."""

DEFAULT_TRANSCRIPT = ScriptedTranscript()


class ScriptedSpeechInput:
    """
    One conversation's speech input.

    Attributes:
        transcripts: of the finished turns, by their ids.
    """

    def __init__(self, script: Script, deliver: Deliver, play_steps: PlaySteps) -> None:
        self.transcripts: dict[str, str] = {}
        self._script = script
        self._deliver = deliver
        self._play_steps = play_steps
        self._configuration = commands.Configure()
        self._vad: ScriptedVad | None = None
        self._waiting_commands: list[commands.AppendAudio | commands.Configure] = []
        # In samples: now, where the last turn or cleared audio ended, where the open turn began.
        self._clock_samples = 0
        self._earliest_start = 0
        self._turn_start = 0
        self._open_turn_id = ""
        self._turn_count = 0
        self._finished_turns = 0

    def send(self, command: commands.AppendAudio | commands.Configure) -> None:
        """Append audio, or change the settings for what follows."""
        if self._vad is None:
            self._skip(command)
            return
        if not self._waiting_commands:
            asyncio.get_running_loop().call_soon(self._process_waiting)
        self._waiting_commands.append(command)

    def commit(self, id: str) -> None:
        """All audio since the last turn is a turn; from the start of the open turn if there is one."""
        self._skip_waiting()
        self._end_turn(id, self._turn_start if self._open_turn_id else self._earliest_start, self._clock_samples)
        self._clear_turn()

    def clear(self) -> None:
        """Drop all audio since the last turn, and an open turn."""
        self._skip_waiting()
        self._clear_turn()

    def close(self) -> None:
        """Process nothing more, not even what waits, and forget the receivers, which refer to this."""
        self._waiting_commands = []
        self._vad = None
        self._deliver = self._play_steps = deliver_nowhere

    def _process_waiting(self) -> None:
        waiting, self._waiting_commands = self._waiting_commands, []
        batch: list[events.EngineEvent] = []
        for command in waiting:
            if isinstance(command, commands.AppendAudio) and self._vad is not None:
                batch += self._turn_events(self._vad, command.pcm)
            self._skip(command)
        if batch:
            self._deliver(batch)

    def _turn_events(self, vad: ScriptedVad, pcm: bytes) -> Iterator[events.EngineEvent]:
        for edge in vad.feed(pcm, self._clock_samples):
            if edge.is_start:
                self._turn_count += 1
                self._open_turn_id, self._turn_start = f"turn_{self._turn_count}", max(edge.at_sample, self._earliest_start)
                yield events.SpeechStarted(self._open_turn_id, self._to_ms(self._turn_start))
            else:
                yield events.SpeechStopped(self._open_turn_id, self._to_ms(edge.at_sample))
                self._end_turn(self._open_turn_id, self._turn_start, edge.at_sample)
                self._open_turn_id, self._earliest_start = "", edge.at_sample

    def _skip_waiting(self) -> None:
        waiting, self._waiting_commands = self._waiting_commands, []
        for command in waiting:
            self._skip(command)

    def _skip(self, command: commands.AppendAudio | commands.Configure) -> None:
        """Apply a command without looking for turns in it."""
        if isinstance(command, commands.AppendAudio):
            self._clock_samples += len(command.pcm) // SAMPLE_BYTES
        else:
            self._configure(command)

    def _clear_turn(self) -> None:
        self._open_turn_id, self._earliest_start = "", self._clock_samples
        if self._vad is not None:
            self._vad.reset()

    def _configure(self, command: commands.Configure) -> None:
        before, self._configuration = self._configuration.rate_hz, command
        self._clock_samples, self._earliest_start, self._turn_start = (
            position * command.rate_hz // before for position in (self._clock_samples, self._earliest_start, self._turn_start)
        )
        if command.turn_detection is None:
            self._vad, self._open_turn_id = None, ""
            return
        if self._vad is None:
            self._vad = LevelVad() if self._script.speech is None else ScheduledVad(self._script.speech)
        self._vad.configure(command.rate_hz, command.turn_detection)

    def _end_turn(self, id: str, start: int, end: int) -> None:
        self._finished_turns += 1
        length_ms = self._to_ms(end - start)
        transcript = next((each for each in self._script.hears if each.turn in (None, self._finished_turns)), DEFAULT_TRANSCRIPT)
        text = self.transcripts[id] = placeholder_transcript(length_ms) if transcript.says is None else transcript.says
        if (options := self._configuration.transcription) is not None:
            self._play_steps(_transcript_steps(id, text, transcript, length_ms / 1000, options.logprobs))
        elif transcript.says is not None and transcript.fails is None:
            # As a cascade does it: the words are known, whether the client asked for them or not.
            self._play_steps((events.InputTranscriptDone(id=id, transcript=text, seconds=length_ms / 1000),))

    def _to_ms(self, samples: int) -> int:
        return samples * 1000 // self._configuration.rate_hz


def _transcript_steps(
    id: str, text: str, transcript: ScriptedTranscript, seconds: float, logprobs: bool
) -> Iterator[events.EngineEvent | float]:
    if transcript.delay_ms:
        yield transcript.delay_ms / 1000
    if transcript.fails is not None:
        yield events.InputTranscriptFailed(id=id, **structs.asdict(transcript.fails))
        return
    tokens = [certain_token(piece) for piece in split_words(text)]
    for token in tokens:
        yield events.InputTranscriptDelta(id, token.token.token, (token,) if logprobs else ())
    for segment in transcript.segments:
        yield events.InputTranscriptSegment(id=id, **structs.asdict(segment))
    yield events.InputTranscriptDone(
        id=id, transcript=text, seconds=seconds, languages=transcript.languages, logprobs=tuple(tokens) if logprobs else ()
    )
