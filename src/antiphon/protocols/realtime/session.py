"""
A Realtime session: events of the client, the engine and the clock in; effects out.

At most one response is active in the conversation, and up to `MAX_OUT_OF_BAND_RESPONSES` out of band. A client event
that can't be obeyed is answered with one `error` event and changes nothing. The wire types here are those of general
availability (GA); the beta is translated in `wire.realtime.beta_events`.

Source: OpenAI's Realtime API reference and guide, and captures of what its server does.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

from msgspec import UNSET, Struct, structs

from antiphon.engine_api import commands, events as engine_events, history as engine_history
from antiphon.errors import ApiError, ClientError, ServerError
from antiphon.protocols.dispatch import HandlerTable, on, table
from antiphon.protocols.realtime.conversation import ConversationItems
from antiphon.protocols.realtime.input_audio import InputAudioStream, InputTranscriptEvent
from antiphon.protocols.realtime.items import ItemCommands, check_event_size
from antiphon.protocols.realtime.mcp_servers import McpServers
from antiphon.protocols.realtime.outbox import RealtimeOutbox
from antiphon.protocols.realtime.output_buffer import OutputBuffer, UnheardPart
from antiphon.protocols.realtime.plan import effective_tools, plan_response
from antiphon.protocols.realtime.response import CancelReason, RealtimeResponse
from antiphon.protocols.realtime.settings import (
    AnySession,
    RealtimeSessionConfig,
    apply_patch,
    audio_input,
    audio_output,
    check_servers,
    codec_of,
    initial_session,
    voice_name,
    without_credentials,
)
from antiphon.protocols.session import (
    Close,
    CountTokens,
    Effect,
    Event,
    FromClient,
    FromEngine,
    FromTool,
    Hangup,
    NewId,
    Shutdown,
    Tick,
    WakeAt,
)
from antiphon.protocols.tool_loop import ApprovedCall
from antiphon.tool_api import mcp_function_name
from antiphon.wire.realtime import client_events as client, server_events as events
from antiphon.wire.realtime.items import McpApprovalResponseItem
from antiphon.wire.realtime.response import ResponseParams
from antiphon.wire.realtime.session import ServerVad, Session, VoiceId

MAX_OUT_OF_BAND_RESPONSES = 16
"""How many responses out of band may be active at once."""


class UnreadableRealtimeEvent(Struct, frozen=True):
    """
    The client sent a frame that is not a valid event: `error` says why; `event_id` is the client's id for it, if any.
    """

    error: ApiError
    event_id: str | None = None


RealtimeMessage: TypeAlias = client.ClientEvent | RealtimeSessionConfig | UnreadableRealtimeEvent
"""What the client of a session can send it."""


class RealtimeSession:
    """
    The machine of one session. The first `FromClient` carries its `RealtimeSessionConfig`, which starts it.

    Attributes:
        end_reason: why the session ended; None before.
    """

    def __init__(self, config: RealtimeSessionConfig, new_id: NewId) -> None:
        self.end_reason: str | None = None
        self._config = config
        self._new_id = new_id
        self._outbox = RealtimeOutbox(new_id)
        self._conversation = ConversationItems()
        self._item_commands = ItemCommands(config, self._outbox, new_id, self._conversation)
        self._session: AnySession
        self._input_audio: InputAudioStream
        self._conversation_id = new_id("conv")
        self._output_buffer = OutputBuffer(self._outbox.send) if config.has_output_buffer else None
        self._responses: dict[str, RealtimeResponse] = {}
        self._active_response: RealtimeResponse | None = None
        self._uncounted_tokens = 0
        self._has_audio_output = False
        self._now = 0.0
        self._ends_at = 0.0
        self._idle_at: float | None = None
        self._idle_since_ms = 0
        self._playback_ends_at: float | None = None
        self._wakes_at: float | None = None
        self._mcp_servers = McpServers(self._outbox, new_id, self._conversation, is_available=config.capabilities.tools)
        self._approved_calls: list[ApprovedCall] = []
        self._held_params: list[ResponseParams] = []
        self._next_response_id: str | None = None

    def handle(self, event: Event[RealtimeMessage]) -> list[Effect[events.ServerEvent]]:
        if self.end_reason is not None:
            return []
        self._now = event.at
        self._uncounted_tokens = 0
        if self._output_buffer is not None:
            self._output_buffer.advance(event.at)
        if self._playback_ends_at is not None and event.at >= self._playback_ends_at:
            self._end_playback()
        if isinstance(event, FromEngine):
            for engine_event in event.events:
                self._handle_engine_event(engine_event)
        elif isinstance(event, FromClient):
            self._handle_client_event(event.message)
        else:
            self._handle_control_event(event)
        self._schedule_wake()
        return self._outbox.drain()

    def _handle_control_event(self, event: Event[RealtimeMessage]) -> None:
        match event:
            case Tick(at):
                self._wake(at)
            case Hangup():
                self._end("client_left", None)
            case FromTool():
                self._handle_tool_event(event)
            case Shutdown(error):
                self._fail_all(engine_events.ResponseFailed.from_error("", error))
                self._end("halted", error)
            case _:
                pass

    # Client events and errors

    def _handle_client_event(self, message: RealtimeMessage) -> None:
        try:
            _CLIENT_HANDLERS[type(message)](self, message)
        except ApiError as error:
            event_id = getattr(message, "event_id", None)
            self._send_error(error, event_id if isinstance(event_id, str) else None)

    def _send_error(self, error: ApiError, event_id: str | None = None) -> None:
        # Realtime: most errors leave the session open. The inner `event_id` is the client's, and null if its event had
        # none.
        wire_error = events.RealtimeError(type=error.type, code=error.code, message=error.message, param=error.param, event_id=event_id)
        self._outbox.send(events.ErrorEvent, error=wire_error)

    def _begin(self, config: RealtimeSessionConfig) -> None:
        self._ends_at = self._now + config.max_duration_s
        try:
            self._session = initial_session(config, self._new_id("sess"), int(self._ends_at))
            check_event_size(self._session, "session")
        except ClientError as error:
            self._send_error(error)
            self._end("refused", error)
            return
        self._input_audio = InputAudioStream(config, self._session, self._outbox, self._new_id, self._conversation)
        # Realtime: `session.created` comes first; pipecat sends nothing before it.
        self._outbox.send(events.SessionCreated, session=without_credentials(self._session))
        if config.dialect == "beta":
            # The beta goes on with `conversation.created`; the GA server does not send it any more.
            conversation = events.Conversation(id=self._conversation_id, object="realtime.conversation")
            self._outbox.send(events.ConversationCreated, conversation=conversation)
        self._list_mcp_tools()

    def _end(self, reason: str, error: ApiError | None) -> None:
        for response in self._responses.values():
            response.abandon()
            self._count_tokens(response)
        self._responses.clear()
        self._active_response = None
        self.end_reason = reason
        self._outbox.effects.append(Close(error))

    def _wake(self, at: float) -> None:
        self._wakes_at = None
        if at >= self._ends_at:
            # Realtime: at the end of its time a session gets the error `session_expired`, and the socket is closed with
            # 1001.
            error = _session_expired_error(self._config.max_duration_s)
            self._fail_all(engine_events.ResponseFailed.from_error("", error))
            self._send_error(error)
            self._end("session_expired", error)
        elif self._idle_at is not None and at >= self._idle_at:
            self._idle_at = None
            self._input_audio.time_out(self._idle_since_ms)
            self._respond_to_turn()

    def _schedule_wake(self) -> None:
        if self.end_reason is not None:
            return
        wakes_at = self._ends_at if self._idle_at is None else min(self._idle_at, self._ends_at)
        if self._idle_at is not None and self._playback_ends_at is not None:
            wakes_at = min(wakes_at, self._playback_ends_at)
        if self._output_buffer is not None and (part_ends_at := self._output_buffer.next_end_at) is not None:
            wakes_at = min(wakes_at, part_ends_at)
        if wakes_at != self._wakes_at:
            self._wakes_at = wakes_at
            self._outbox.effects.append(WakeAt(wakes_at))

    # The session

    def _update_session(self, event: client.SessionUpdate) -> None:
        session = apply_patch(self._session, event.session, self._config, has_spoken=self._has_audio_output)
        check_event_size(session, "session")
        # The last step that can refuse: an update that is refused changes nothing.
        self._input_audio.configure(session)
        former_idle_ms, self._session = self._idle_timeout_ms(), session
        idle_ms = self._idle_timeout_ms()
        if idle_ms is None or former_idle_ms is None:
            self._idle_at = None
        elif self._idle_at is not None:
            self._idle_at += (idle_ms - former_idle_ms) / 1000
        # Realtime: shows the whole session, not only what has changed. pipecat waits for it before it sends anything
        # else, and openai-agents reads in it whether the server interrupts a response by itself.
        self._outbox.send(events.SessionUpdated, session=without_credentials(session))
        self._list_mcp_tools()
        self._prepare_response()

    def _list_mcp_tools(self) -> None:
        if isinstance(self._session, Session):
            self._mcp_servers.require(self._session.tools or (), "session.tools")

    def _handle_tool_event(self, event: FromTool) -> None:
        if (response := self._responses.get(event.id)) is None:
            self._mcp_servers.on_tool(event)
            held_params, self._held_params = self._held_params, []
            for params in held_params:
                self._respond_if_allowed(params)
        elif response.handle_tool(event):
            self._on_response_finished(response)

    # Audio

    def _append_audio(self, event: client.InputAudioBufferAppend) -> None:
        self._input_audio.append(event)

    def _commit_audio(self, _event: client.InputAudioBufferCommit) -> None:
        # Realtime: a commit creates no response; the client sends `response.create`.
        self._input_audio.commit()
        self._input_audio.report_missing_transcription(self._session)

    def _clear_audio(self, _event: client.InputAudioBufferClear) -> None:
        self._input_audio.clear()

    def _clear_output(self, _event: client.OutputAudioBufferClear) -> None:
        if self._output_buffer is not None:
            self._truncate_unheard(self._output_buffer.clear(self._now))
            if self._idle_at is not None and self._playback_ends_at is not None:
                self._idle_at -= self._playback_ends_at - self._now
                self._end_playback()
            return
        raise ClientError(
            "The server has an output audio buffer over WebRTC and SIP only. Here, send 'response.cancel', stop the playback, and "
            "report how much was heard with 'conversation.item.truncate'.",
            code="invalid_value",
            param="type",
        )

    def _truncate_unheard(self, unheard: Sequence[UnheardPart]) -> None:
        for part in unheard:
            self._item_commands.truncate_playback(part.item_id, part.content_index, part.heard_ms)

    def _on_speech_started(self, event: engine_events.SpeechStarted) -> None:
        if not self._input_audio.start_turn(event):
            return
        self._idle_at = None
        if self._has_detection_option("interrupt_response"):
            self._interrupt()
        self._prepare_response()

    def _interrupt(self) -> None:
        """The user speaks: stop the playback, then the response."""
        if self._output_buffer is not None:
            # Realtime: over a WebSocket the client plays the audio, so it truncates what was not heard; in a call, the
            # server does.
            self._truncate_unheard(self._output_buffer.drop(self._now))
        if self._active_response is not None:
            self._cancel(self._active_response, "turn_detected")

    def _on_speech_stopped(self, event: engine_events.SpeechStopped) -> None:
        if self._input_audio.stop_turn(event):
            self._input_audio.report_missing_transcription(self._session)
            if self._has_detection_option("create_response"):
                self._respond_to_turn()

    def _on_input_transcript(self, event: InputTranscriptEvent) -> None:
        self._input_audio.handle_transcript(event, self._session)

    def _has_detection_option(self, name: str) -> bool:
        # Realtime reference: both options are on unless they are set to false; without turn detection there is neither.
        return getattr(audio_input(self._session).turn_detection, name, False) is not False

    def _idle_timeout_ms(self) -> int | None:
        detection = audio_input(self._session).turn_detection
        idle_ms = detection.idle_timeout_ms if isinstance(detection, ServerVad) else None
        return idle_ms if isinstance(idle_ms, int) else None

    # Items

    def _create_item(self, event: client.ConversationItemCreate) -> None:
        codec = codec_of(audio_input(self._session).format)
        self._item_commands.create(event, codec, self._input_audio.announced_item_id)
        if isinstance(event.item, McpApprovalResponseItem):
            self._on_approval(event.item)
        else:
            self._prepare_response()

    def _on_approval(self, answer: McpApprovalResponseItem) -> None:
        """Go on with the call that the user has approved, or without it; at once, unless another response is under way."""
        request = self._conversation.approval_request(answer.approval_request_id)
        if answer.approve:
            name = mcp_function_name(request.server_label, request.name)
            self._approved_calls.append(ApprovedCall(str(request.id), name, request.arguments, request.server_label))
        if self._active_response is None:
            self._respond_if_allowed(ResponseParams())

    def _retrieve_item(self, event: client.ConversationItemRetrieve) -> None:
        session = self._session
        if isinstance(session, Session) and self._item_commands.is_assistant_item(event.item_id):
            self._item_commands.retrieve(event, audio_output(session).format)
        else:
            self._item_commands.retrieve(event, audio_input(session).format)

    def _truncate_item(self, event: client.ConversationItemTruncate) -> None:
        self._item_commands.truncate(event)
        self._prepare_response()

    def _delete_item(self, event: client.ConversationItemDelete) -> None:
        self._item_commands.delete(event)
        self._prepare_response()

    # Responses

    def _respond_to_turn(self) -> None:
        """Create a response to a turn that has just ended, unless the session only transcribes."""
        if isinstance(self._session, Session):
            # With `interrupt_response` off, a response may still be active: then this one is refused as a client's
            # would be.
            self._respond_if_allowed(ResponseParams())

    def _respond_if_allowed(self, params: ResponseParams) -> None:
        try:
            self._respond(params)
        except ApiError as error:  # no client event asks for it, so there is no event id to name
            self._send_error(error)

    def _prepare_response(self) -> None:
        """
        Send the engine the request that will follow if the open turn ends now, so that it can start early (preemptive
        generation).
        """
        session, turn = self._session, self._input_audio.turn
        is_useful = self._config.capabilities.foresees and turn.is_open and self._has_detection_option("create_response")
        if not is_useful or not isinstance(session, Session) or self._active_response is not None:
            return
        self._next_response_id = self._next_response_id or self._new_id("resp")
        open_turn = engine_history.Message("user", (engine_history.SpeechPart(b"", self._input_audio.buffer.rate_hz, turn.id),))
        history = (*self._item_commands.history(None, codec_of(audio_input(session).format)), open_turn)
        with suppress(ApiError):  # an error is reported when the response is really created
            functions = self._mcp_servers.functions(session.tools or ())
            plan = plan_response(self._next_response_id, ResponseParams(), session, self._config, history, self._conversation_id, functions)
            self._outbox.send_to_engine(commands.Prepare(plan.respond))

    def _create_response(self, event: client.ResponseCreate) -> None:
        self._respond(event.response if isinstance(event.response, ResponseParams) else ResponseParams())

    def _respond(self, params: ResponseParams) -> None:
        session = self._session
        if not isinstance(session, Session):
            raise ClientError("Responses are not available in transcription sessions.", code="invalid_value", param="type")
        # Realtime: a response with `conversation: "none"` adds nothing to the conversation and may run beside the
        # active one.
        is_out_of_band = params.conversation == "none"
        self._check_active_responses(is_out_of_band=is_out_of_band)
        check_servers(params.tools, self._config, "response.tools")
        tools, tools_path = effective_tools(params, session)
        if not self._mcp_servers.require(tools, tools_path):
            if len(self._held_params) >= MAX_OUT_OF_BAND_RESPONSES:
                raise ClientError("Too many responses wait for the tools of MCP servers to be listed.", code="too_many_active_responses")
            self._held_params.append(params)  # until the servers are listed, within the limit of a tool's time
            return
        input_items = params.input if isinstance(params.input, list) else None
        history = self._item_commands.history(input_items, codec_of(audio_input(session).format))
        conversation_id = None if is_out_of_band else self._conversation_id
        response_id = (None if is_out_of_band else self._next_response_id) or self._new_id("resp")
        approved_calls = () if is_out_of_band else tuple(self._approved_calls)
        functions = self._mcp_servers.functions(tools)
        plan = plan_response(response_id, params, session, self._config, history, conversation_id, functions, approved_calls)
        # Realtime: the voice can't change once the model has spoken; a client that repeats it changes nothing.
        self._check_voice(plan.voice, session)
        response = RealtimeResponse(plan, self._outbox, self._new_id, None if is_out_of_band else self._conversation, self._output_buffer)
        self._responses[plan.id] = response
        if not is_out_of_band:
            self._active_response, self._next_response_id = response, None
            self._approved_calls.clear()
            self._idle_at = None
        # Realtime: a response that the limits forbid is no `error`: it is created, and its `response.done` has failed.
        failure = self._rate_limit_failure(plan.id)
        if failure is None:
            response.begin()
        else:
            response.refuse(failure, self._now)
        if self._config.dialect == "beta":
            self._send_rate_limits()
        if failure is not None:
            self._on_response_finished(response)

    def _rate_limit_failure(self, id: str) -> engine_events.ResponseFailed | None:
        """The failure of a response for which no tokens are left; None if there are some."""
        limit = next((limit for limit in self._rate_limits() if limit.name == "tokens" and limit.remaining == 0), None)
        if limit is None:
            return None
        tokens = limit.limit or 1
        wait_s = (limit.reset_seconds or 0.0) - (tokens - 1) * 60 / tokens  # until the first token is back, not all of them
        return engine_events.ResponseFailed(
            id=id,
            message=f"Rate limit reached: your limit is {tokens} tokens per minute. Please try again in {max(0.0, wait_s):.3f}s.",
            status=429,
            code="rate_limit_exceeded",
            type="rate_limit_error",
        )

    def _check_active_responses(self, *, is_out_of_band: bool) -> None:
        # Realtime: the conversation has one response at a time. One that is refused has neither `response.created` nor
        # `response.done`; pipecat goes on after this error, by its code.
        if not is_out_of_band and self._active_response is not None:
            raise ClientError(
                f"Conversation already has an active response in progress: {self._active_response.plan.id}. "
                "Wait until the response is finished before creating a new one.",
                code="conversation_already_has_active_response",
            )
        if len(self._responses) - (self._active_response is not None) >= MAX_OUT_OF_BAND_RESPONSES and is_out_of_band:
            raise ClientError(
                f"There are {MAX_OUT_OF_BAND_RESPONSES} responses in progress outside of the conversation. "
                "Wait until one of them is finished.",
                code="too_many_active_responses",
            )

    def _check_voice(self, voice: str | VoiceId, session: Session) -> None:
        if self._has_audio_output and voice_name(voice) != voice_name(audio_output(session).voice):
            raise ClientError(
                "Cannot update a conversation's voice if assistant audio is present.",
                code="cannot_update_voice",
                param="response.audio.output.voice",
            )

    def _cancel_response(self, event: client.ResponseCancel) -> None:
        response = self._active_response if event.response_id in (UNSET, None) else self._responses.get(str(event.response_id))
        if response is None:
            # A cancel may come just after the end. livekit passes over this error by how its message begins, pipecat by
            # its code.
            raise ClientError("Cancellation failed: no active response found", code="response_cancel_not_active")
        self._cancel(response, "client_cancelled")

    def _cancel(self, response: RealtimeResponse, reason: CancelReason) -> None:
        response.cancel(reason, self._now)
        self._on_response_finished(response)

    def _fail_all(self, failure: engine_events.ResponseFailed) -> None:
        for response in tuple(self._responses.values()):
            # Realtime: every `response.created` has its `response.done`, also when the server ends the session.
            self._outbox.send_to_engine(commands.Cancel(response.plan.id))
            response.handle_event(failure, self._now)
            self._count_tokens(response)
        self._responses.clear()
        self._active_response = None

    def _on_response_finished(self, response: RealtimeResponse) -> None:
        del self._responses[response.plan.id]
        self._count_tokens(response)
        if response is self._active_response:
            self._active_response = None
            self._start_idle_timer(response)
        # Captures of the GA server have `rate_limits.updated` after `response.done`, those of the beta after
        # `response.created`.
        if self._config.dialect == "ga":
            self._send_rate_limits()

    def _count_tokens(self, response: RealtimeResponse) -> None:
        if tokens := response.tokens:
            self._uncounted_tokens += tokens
            self._outbox.effects.append(CountTokens(tokens))

    def _start_idle_timer(self, response: RealtimeResponse) -> None:
        idle_ms = self._idle_timeout_ms()
        # Realtime reference: `idle_timeout_ms` counts from `response.done` and the end of playback.
        if idle_ms is not None and not self._input_audio.turn.is_open:
            # Audio is generated faster than it plays: the client's silence begins when the last of it was played.
            unplayed_s = max(0.0, response.audio_started_at + response.audio_ms / 1000 - self._now) if response.has_audio else 0.0
            self._idle_at = self._now + unplayed_s + idle_ms / 1000
            if unplayed_s:
                self._playback_ends_at = self._now + unplayed_s
            else:
                self._end_playback()

    def _end_playback(self) -> None:
        """The last response was played: from here on the client is silent."""
        self._playback_ends_at, self._idle_since_ms = None, self._input_audio.buffer.now_ms

    def _rate_limits(self) -> list[events.RateLimit]:
        """
        What is left of the limits. Tokens of this event's responses are counted after it, so they are subtracted here.
        """
        return [_subtract_tokens(limit, self._uncounted_tokens) for limit in self._config.rate_limits()]

    def _send_rate_limits(self) -> None:
        self._outbox.send(events.RateLimitsUpdated, rate_limits=self._rate_limits())

    # Engine events

    def _handle_engine_event(self, event: engine_events.EngineEvent) -> None:
        handler = _ENGINE_HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)
        elif (response := self._responses.get(event.id)) is not None:
            is_over = response.handle_event(event, self._now)
            self._has_audio_output = self._has_audio_output or response.has_audio
            if is_over:
                self._on_response_finished(response)

    def _on_engine_error(self, event: engine_events.EngineError) -> None:
        self._send_error(ServerError(event.message, code=event.code, type=event.type))


def _subtract_tokens(limit: events.RateLimit, tokens: int) -> events.RateLimit:
    if limit.name != "tokens" or not tokens or not limit.limit:
        return limit
    remaining, reset_s = max(0, (limit.remaining or 0) - tokens), (limit.reset_seconds or 0.0) + tokens * 60 / limit.limit
    return structs.replace(limit, remaining=remaining, reset_seconds=round(reset_s, 3))


def _session_expired_error(max_duration_s: float) -> ApiError:
    minutes = f"{max_duration_s / 60:g} minutes" if max_duration_s != 60 else "1 minute"
    return ClientError(f"Your session hit the maximum duration of {minutes}.", code="session_expired")


_CLIENT_HANDLERS: HandlerTable[RealtimeSession, None] = table(
    on(RealtimeSessionConfig, RealtimeSession._begin),
    on(UnreadableRealtimeEvent, lambda session, event: session._send_error(event.error, event.event_id)),
    on(client.SessionUpdate, RealtimeSession._update_session),
    on(client.InputAudioBufferAppend, RealtimeSession._append_audio),
    on(client.InputAudioBufferCommit, RealtimeSession._commit_audio),
    on(client.InputAudioBufferClear, RealtimeSession._clear_audio),
    on(client.OutputAudioBufferClear, RealtimeSession._clear_output),
    on(client.ConversationItemCreate, RealtimeSession._create_item),
    on(client.ConversationItemRetrieve, RealtimeSession._retrieve_item),
    on(client.ConversationItemTruncate, RealtimeSession._truncate_item),
    on(client.ConversationItemDelete, RealtimeSession._delete_item),
    on(client.ResponseCreate, RealtimeSession._create_response),
    on(client.ResponseCancel, RealtimeSession._cancel_response),
)
"""What each client event does. A test fails for one that is missing."""

_ENGINE_HANDLERS = table(
    on(engine_events.SpeechStarted, RealtimeSession._on_speech_started),
    on(engine_events.SpeechStopped, RealtimeSession._on_speech_stopped),
    on(engine_events.InputTranscriptDelta, RealtimeSession._on_input_transcript),
    on(engine_events.InputTranscriptSegment, RealtimeSession._on_input_transcript),
    on(engine_events.InputTranscriptDone, RealtimeSession._on_input_transcript),
    on(engine_events.InputTranscriptFailed, RealtimeSession._on_input_transcript),
    on(engine_events.EngineError, RealtimeSession._on_engine_error),
)
"""What each engine event about the client's audio does; the others belong to a response."""
