"""One choice of a completion: what the steps of its output are as chunks, and what it is as a whole."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import UNSET, ValidationError, convert, structs

from antiphon.engine_api import commands, events
from antiphon.protocols import output as steps
from antiphon.protocols.chat.request import AUDIO_RATE_HZ
from antiphon.protocols.output import OutputItem, OutputMachine
from antiphon.protocols.output_table import OutputKind
from antiphon.protocols.session import NewId
from antiphon.protocols.token_estimate import response_tokens
from antiphon.protocols.tool_loop import ToolLoop
from antiphon.wire.chat.messages import CalledFunction, CalledTool, ChatCustomCall, ChatFunctionCall, ChatToolCall
from antiphon.wire.chat.response import (
    ChatAnswer,
    ChatAnswerAudio,
    ChatAudioDelta,
    ChatChoice,
    ChatChunkChoice,
    ChatCitation,
    ChatDelta,
    ChatFinishReason,
    ChatLogprobs,
    ChatPage,
    ChatToolCallDelta,
    CustomDelta,
    FunctionDelta,
)
from antiphon.wire.chat.stream import ChatStreamEvent, ChoiceChunk, ContentDelta
from antiphon.wire.codec.types import JsonDict
from antiphon.wire.responses.parts import Logprob, TopLogprob

REASONING_KINDS = (OutputKind.REASONING_TEXT, OutputKind.REASONING_SUMMARY)
PARAGRAPH = "\n\n"
"""Between two parts of the reasoning, which is one text here."""

MAX_AUDIO_BYTES = 64 << 20
"""Of an answer that is sent whole: 23 minutes. It ends there as at a limit of tokens."""

_FINISH_REASONS: dict[str | None, ChatFinishReason] = {"max_output_tokens": "length", "content_filter": "content_filter"}


class Choice:
    """
    One choice under way.

    Args:
        is_legacy: whether calls are made in the form from before tools.
        created_at: of the completion, in Unix seconds.

    Attributes:
        output: the state of what the engine says.
        loop: asks the model again when the web was searched; None where it is asked once.
        pcm: the audio so far, of an answer that is not streamed.
    """

    def __init__(
        self, index: int, request: commands.Respond, new_id: NewId, created_at: int, *, is_legacy: bool, is_streaming: bool
    ) -> None:
        self.index = index
        self.request = request
        self.output = OutputMachine(new_id, is_spoken=request.voice is not None, requires_item=False)
        self.loop: ToolLoop | None = None
        self.pcm = bytearray()
        self._audio_id = new_id("audio") if request.voice is not None else ""
        self._created_at = created_at
        self._is_legacy = is_legacy
        self._is_streaming = is_streaming
        self._call_indexes: dict[str, int] = {}
        self._finish_reason: ChatFinishReason = "stop"
        self._has_audio_begun = False
        self._has_reasoning = False
        self._reasoning: list[str] = []

    @property
    def tokens(self) -> int:
        """Input and output tokens; estimated if the engine did not report them."""
        return response_tokens(self.output, self.request, AUDIO_RATE_HZ)

    @property
    def finish_reason(self) -> ChatFinishReason:
        """Why the choice ended."""
        return self._finish_reason

    def finish(self, step: steps.OutputFinished) -> None:
        """Note why the choice ended."""
        if step.reason is not None:
            self._finish_reason = _FINISH_REASONS[step.reason]
        elif any(item.call is not None for item in self.output.items):
            self._finish_reason = "function_call" if self._is_legacy else "tool_calls"

    # In chunks

    def chunks(self, step: steps.OutputStep) -> Iterator[ChatStreamEvent]:
        """The chunks of a step that does not end the choice; none where the answer is sent whole."""
        match step:
            case steps.TextAppended():
                yield from self._text_chunks(step)
            case steps.AudioAppended(pcm=pcm):
                if self._is_streaming:
                    yield self._chunk(ChatDelta(audio=self._audio_delta(data=pcm)))
                else:
                    self.pcm += pcm
            case _ if not self._is_streaming:
                return
            case steps.ItemAdded(item=item) if item.call is not None:
                index = self._call_indexes[item.id] = len(self._call_indexes)
                if not self._is_left_out(index):
                    yield self._call_chunk(item.call, index)
            case steps.ArgumentsAppended(item, text) if not self._is_left_out(self._call_indexes[item.id]):
                yield self._arguments_chunk(item, text)
            case steps.AnnotationAppended(annotation=annotation):
                if (citation := _citation(annotation, self._text_before(step.part))) is not None:
                    yield self._chunk(ChatDelta(annotations=[citation]))
            case _:  # beginnings and ends have no chunks, nor have the items of hosted tools
                return

    def _text_before(self, part: steps.ContentPart) -> int:
        """How many characters the content has before a part: here all texts are one."""
        own = [self.output.open_item] if self.output.open_item is not None else []
        texts = [each for item in (*self.output.items, *own) for each in item.parts if each.kind is OutputKind.TEXT]
        return sum(len(each.text) for each in texts[: texts.index(part)]) if part in texts else 0

    def final_chunk(self) -> ChatStreamEvent:
        """The chunk that ends the choice."""
        delta = ChatDelta(audio=ChatAudioDelta(expires_at=self._created_at)) if self._has_audio_begun else ChatDelta()
        return ChoiceChunk(ChatChunkChoice(index=self.index, delta=delta, finish_reason=self._finish_reason))

    def _text_chunks(self, step: steps.TextAppended) -> Iterator[ChatStreamEvent]:
        kind, text = step.part.kind, step.text
        if kind in REASONING_KINDS:
            # The first text of a part that follows another.
            if self._has_reasoning and len(step.part.chunks) == 1:
                text = PARAGRAPH + text
            self._has_reasoning = True
            self._reasoning.append(text)
        if not self._is_streaming:
            return
        if kind is OutputKind.TEXT and not step.logprobs:
            yield ContentDelta(self.index, text)
        elif kind is OutputKind.TEXT:
            logprobs = ChatLogprobs(content=_logprobs(step.logprobs))
            yield ChoiceChunk(ChatChunkChoice(index=self.index, delta=ChatDelta(content=text), logprobs=logprobs), len(text))
        elif kind is OutputKind.REFUSAL:
            yield self._chunk(ChatDelta(refusal=text), len(text))
        elif kind is OutputKind.AUDIO:
            yield self._chunk(ChatDelta(audio=self._audio_delta(transcript=text)), len(text))
        else:
            yield self._chunk(ChatDelta(reasoning_content=text), len(text))

    def _chunk(self, delta: ChatDelta, length: int = 0) -> ChoiceChunk:
        return ChoiceChunk(ChatChunkChoice(index=self.index, delta=delta), length)

    def _audio_delta(self, *, data: bytes | None = None, transcript: str | None = None) -> ChatAudioDelta:
        delta = ChatAudioDelta(
            id=UNSET if self._has_audio_begun else self._audio_id,
            data=UNSET if data is None else data,
            transcript=UNSET if transcript is None else transcript,
        )
        self._has_audio_begun = True
        return delta

    def _is_left_out(self, index: int) -> bool:
        """Whether a call has no place in the answer: before tools, there was one call at most."""
        return self._is_legacy and index > 0

    def _call_chunk(self, call: events.ToolCallStarted, index: int) -> ChoiceChunk:
        name = _flat_name(call)
        if self._is_legacy:
            return self._chunk(ChatDelta(function_call=FunctionDelta(name=name, arguments="")))
        if call.custom:
            delta = ChatToolCallDelta(index=index, id=call.call_id, type="custom", custom=CustomDelta(name=name, input=""))
        else:
            delta = ChatToolCallDelta(index=index, id=call.call_id, type="function", function=FunctionDelta(name=name, arguments=""))
        return self._chunk(ChatDelta(tool_calls=[delta]))

    def _arguments_chunk(self, item: OutputItem, text: str) -> ChoiceChunk:
        if self._is_legacy:
            return self._chunk(ChatDelta(function_call=FunctionDelta(arguments=text)), len(text))
        index = self._call_indexes[item.id]
        if item.call is not None and item.call.custom:
            delta = ChatToolCallDelta(index=index, custom=CustomDelta(input=text))
        else:
            delta = ChatToolCallDelta(index=index, function=FunctionDelta(arguments=text))
        return self._chunk(ChatDelta(tool_calls=[delta]), len(text))

    # Whole

    def whole(self) -> ChatChoice:
        """The whole choice; the audio of a spoken one is bare samples."""
        items = self.output.items
        parts = [part for item in items if not item.is_reasoning for part in item.parts]
        kinds = (OutputKind.TEXT, OutputKind.REFUSAL, OutputKind.AUDIO)
        texts = {kind: [part.text for part in parts if part.kind is kind] for kind in kinds}
        calls = [_wire_call(item) for item in items if item.call is not None]
        refusal = "".join(texts[OutputKind.REFUSAL]) or None
        has_audio = bool(self.pcm or texts[OutputKind.AUDIO])
        is_silent = not calls and refusal is None and not has_audio
        answer = ChatAnswer(
            content="".join(texts[OutputKind.TEXT]) if texts[OutputKind.TEXT] or is_silent else None,
            refusal=refusal,
            annotations=list(_citations(parts)),
            reasoning_content="".join(self._reasoning) if self._reasoning else UNSET,
        )
        if calls and self._is_legacy and isinstance(calls[0], ChatFunctionCall):
            answer.function_call = calls[0].function
        elif calls:
            answer.tool_calls = calls
        if has_audio:
            answer.audio = self._whole_audio("".join(texts[OutputKind.AUDIO]))
        logprobs = [logprob for part in parts for logprob in part.logprobs]
        return ChatChoice(
            index=self.index,
            message=answer,
            logprobs=ChatLogprobs(content=_logprobs(logprobs)) if logprobs else None,
            finish_reason=self._finish_reason,
        )

    def _whole_audio(self, transcript: str) -> ChatAnswerAudio:
        # It can't be referred to later: it expires at once.
        return ChatAnswerAudio(id=self._audio_id, data=bytes(self.pcm), expires_at=self._created_at, transcript=transcript)


def _wire_call(item: OutputItem) -> ChatToolCall:
    call = item.call
    assert call is not None
    if call.custom:
        return ChatCustomCall(id=call.call_id, custom=CalledTool(name=_flat_name(call), input=item.arguments))
    return ChatFunctionCall(id=call.call_id, function=CalledFunction(name=_flat_name(call), arguments=item.arguments))


def _flat_name(call: events.ToolCallStarted) -> str:
    return f"{call.namespace}__{call.name}" if call.namespace else call.name


def _citations(parts: Iterable[steps.ContentPart]) -> Iterator[ChatCitation]:
    length = 0
    for part in parts:
        if part.kind is OutputKind.TEXT:
            for annotation in part.annotations:
                if (citation := _citation(annotation, length)) is not None:
                    yield citation
            length += len(part.text)


def _citation(annotation: JsonDict, offset: int) -> ChatCitation | None:
    """
    The annotation of the Responses API in the form of this one, which knows pages only.

    Args:
        offset: of its part in the content.
    """
    fields = {name: annotation.get(name) for name in ("start_index", "end_index", "title", "url")}
    try:
        page = convert(fields, ChatPage) if annotation.get("type") == "url_citation" else None
    except ValidationError:
        return None
    if page is None:
        return None
    return ChatCitation(url_citation=structs.replace(page, start_index=page.start_index + offset, end_index=page.end_index + offset))


def _logprobs(tokens: Sequence[events.TokenLogprob]) -> list[Logprob]:
    return [
        Logprob(
            token=each.token.token,
            logprob=each.token.logprob,
            bytes=list(each.token.bytes),
            top_logprobs=[TopLogprob(token=other.token, logprob=other.logprob, bytes=list(other.bytes)) for other in each.alternatives],
        )
        for each in tokens
    ]
