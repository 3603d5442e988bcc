"""
The ears of a scripted engine: the clock of what is heard, the turns in it, and what they are heard as.

Turns are looked for on the loop's next iteration, not within `tell`, so that a turn is found and told in one go: by
what is committed or forgotten before that, the sound that waits is ended or dropped with the rest, as whoever says so
knows of no turn in it.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from msgspec import structs

from antiphon.audio import SAMPLE_BYTES
from antiphon.engine_api import commands, events
from antiphon.engine_api.engine import Deliver
from antiphon.engines.scripted.answers import placeholder_transcript, split_words
from antiphon.engines.scripted.script import Script, ScriptedTranscript
from antiphon.engines.scripted.turn_detection import LevelVad, ScheduledVad, ScriptedVad

PlaySteps = Callable[[Iterable[events.EngineEvent | float]], None]
"""Says words, with pauses in seconds between them, at the script's pace and not at once."""

DEFAULT_TRANSCRIPT = ScriptedTranscript()


class ScriptedSpeechInput:
    """
    What one conversation hears.

    Attributes:
        heard: what was said in the turns that are over, by their ids.
    """

    def __init__(self, script: Script, deliver: Deliver, play_steps: PlaySteps) -> None:
        self.transcripts: dict[str, str] = {}
        self._script = script
        self._deliver = deliver
        self._play_steps = play_steps
        self._configuration = commands.Configure()
        self._vad: ScriptedVad | None = None
        self._waiting_commands: list[commands.AppendAudio | commands.Configure] = []
        # Places on the clock are counted in samples: now, where the last turn or what was forgotten ended, where the open turn began.
        self._clock_samples = 0
        self._earliest_start = 0
        self._turn_start = 0
        self._open_turn_id = ""
        self._turn_count = 0
        self._finished_turns = 0

    def send(self, command: commands.AppendAudio | commands.Configure) -> None:
        """More sound, or how what follows is to be taken."""
        if self._vad is None:
            self._skip(command)
            return
        if not self._waiting_commands:
            asyncio.get_running_loop().call_soon(self._process_waiting)
        self._waiting_commands.append(command)

    def commit(self, id: str) -> None:
        """What was heard since the last turn is one; if it had started, from there."""
        self._skip_waiting()
        self._end_turn(id, self._turn_start if self._open_turn_id else self._earliest_start, self._clock_samples)
        self._clear_turn()

    def clear(self) -> None:
        """What was heard since the last turn is none."""
        self._skip_waiting()
        self._clear_turn()

    def close(self) -> None:
        """Hear nothing more, what waits included."""
        self._waiting_commands = []

    def _process_waiting(self) -> None:
        waiting, self._waiting_commands = self._waiting_commands, []
        words: list[events.EngineEvent] = []
        for word in waiting:
            if isinstance(word, commands.AppendAudio) and self._vad is not None:
                words += self._turn_events(self._vad, word.pcm)
            self._skip(word)
        if words:
            self._deliver(words)

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
        for word in waiting:
            self._skip(word)

    def _skip(self, command: commands.AppendAudio | commands.Configure) -> None:
        """Let it go by, looking for nothing in it."""
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
            place * command.rate_hz // before for place in (self._clock_samples, self._earliest_start, self._turn_start)
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
        hearing = next((one for one in self._script.hears if one.turn in (None, self._finished_turns)), DEFAULT_TRANSCRIPT)
        said = self.transcripts[id] = placeholder_transcript(length_ms) if hearing.says is None else hearing.says
        if (wanted := self._configuration.transcription) is not None:
            self._play_steps(_transcript_steps(id, said, hearing, length_ms / 1000, wanted.logprobs))

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
    tokens = [events.TokenLogprob(events.TokenCandidate(piece, 0.0, tuple(piece.encode()))) for piece in split_words(text)]
    for token in tokens:
        yield events.InputTranscriptDelta(id, token.token.token, (token,) if logprobs else ())
    for segment in transcript.segments:
        yield events.InputTranscriptSegment(id=id, **structs.asdict(segment))
    yield events.InputTranscriptDone(
        id=id, transcript=text, seconds=seconds, languages=transcript.languages, logprobs=tuple(tokens) if logprobs else ()
    )
