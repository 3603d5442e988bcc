"""The operation of each route, from which `/openapi.json` is written."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from antiphon.server.audio.form import FILE_LIMIT_BYTES
from antiphon.server.transport.limits import BODY_LIMIT_BYTES, HEAD_LIMIT_BYTES
from antiphon.wire.http import queue
from antiphon.wire.http.audio import SpeechEvent, SpeechRequest, TranscriptEvent, Transcription, TranscriptionRequest
from antiphon.wire.http.recordings import RecordedSession, RecordedSessionList, SessionDeleted
from antiphon.wire.minicpmo import endpoints as minicpmo
from antiphon.wire.realtime.endpoints import BetaSession, BetaSessionRequest, ClientSecret, ClientSecretRequest
from antiphon.wire.responses.endpoints import InputTokens, InputTokensRequest, ItemList, ResponseDeleted
from antiphon.wire.responses.events import StreamEvent
from antiphon.wire.responses.request import CreateRequest
from antiphon.wire.responses.response import Response


class WhatWentWrong(msgspec.Struct):
    """An error; `param` is the path of the field at fault, `code` what a program can tell it by."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct):
    """The body of every answer that is an error."""

    error: WhatWentWrong


class Health(msgspec.Struct):
    """Whether the server lives, or takes work."""

    status: Literal["ok", "unavailable"]


class Version(msgspec.Struct):
    """What the server is."""

    name: Literal["antiphon"]
    version: str


class Model(msgspec.Struct):
    """A model that can be asked; `created` is in Unix seconds."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(msgspec.Struct):
    """The models that can be asked."""

    object: Literal["list"]
    data: list[Model]


class Document(msgspec.Struct):
    """An OpenAPI document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]


class Operation(NamedTuple):
    """
    The description of one route and method.

    Attributes:
        id: the operation id; generated clients name their methods after it.
        response_type: type of the response, or its media type where it is not JSON; None where there is never one.
        request_type: type of the body.
        event_type: type of each event, where the response may be a stream.
        errors: statuses besides the common ones, and when they occur.
        query: its parameters, as OpenAPI has them.
        description: more than the summary.
        links: operations that take the `id` in this response, with the name of their parameter.
        status: of the response.
    """

    id: str
    tag: str
    summary: str
    response_type: Any
    request_type: Any = None
    event_type: Any = None
    errors: Mapping[int, str] = {}
    query: Sequence[dict[str, Any]] = ()
    description: str | None = None
    links: Mapping[str, str] = {}
    request_media_type: str = "application/json"
    extra_response_media_types: Sequence[str] = ()
    extra_request_media_types: Sequence[str] = ()
    status: int = 200


class TranscriptionForm(TranscriptionRequest, kw_only=True):
    """A form with a recording."""

    file: Annotated[Any, msgspec.Meta(extra_json_schema={"type": "string", "contentMediaType": "application/octet-stream"})]


class CallForm(msgspec.Struct):
    """An offer in SDP, and the session that the call is to begin with."""

    sdp: str
    session: dict[str, Any] = {}


TAGS = {
    "Realtime": "Conversations over a WebSocket or a call, aloud or in writing, and the secrets with which a browser opens them.",
    "Responses": "Answers from models, whole or as streams of events, and what is kept of them.",
    "Audio": "Recordings written down, and texts read aloud.",
    "Sessions": "Recordings of sessions, for those whose sessions they were.",
    "MiniCPM-o": "What the pages and clients of MiniCPM-o ask for before they open a session: presets, and voices to speak with.",
    "Queue": "Clients that wait for a worker, and the workers.",
    "Models": "The models that can be asked.",
    "Server": "What the server is, how it is, and what it can do.",
}

MALFORMED_REQUEST = "The request is malformed, or asks for what the model can't do; `param` says where."
UNAVAILABLE = "No new work is taken: the server is stopping or overloaded. `retry-after` says when to try again."
COMPRESSION_ERRORS = {415: "The body is compressed."}
REQUEST_ERRORS = COMPRESSION_ERRORS | {
    400: MALFORMED_REQUEST,
    404: "There is no such model or item.",
    413: f"The body is over {BODY_LIMIT_BYTES >> 20} MiB.",
    502: "The engine failed, or the server behind it.",
    503: UNAVAILABLE,
}
RESPONSE_NOT_FOUND = {404: "There is no such response."}

PAGE_PARAMETERS = [
    {
        "name": "limit",
        "in": "query",
        "description": "How many items at most.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    },
    {
        "name": "order",
        "in": "query",
        "description": "`asc` for the oldest first.",
        "schema": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    },
    {
        "name": "after",
        "in": "query",
        "description": "The id of an item: those that follow it are listed.",
        "schema": {"type": "string"},
    },
]

SESSION_PAGE_PARAMETERS = [page | {"description": str(page["description"]).replace("item", "session")} for page in PAGE_PARAMETERS]

SESSION_PARAMETERS = [
    {"name": "model", "in": "query", "description": "The model that answers; the first one unless said.", "schema": {"type": "string"}},
    {
        "name": "intent",
        "in": "query",
        "description": "`transcription` for a session that only writes down what is said.",
        "schema": {"type": "string", "enum": ["conversation", "transcription"], "default": "conversation"},
    },
    {
        "name": "dialect",
        "in": "query",
        "description": "The dialect that is spoken; the one that the client asks for unless said.",
        "schema": {"type": "string", "enum": ["ga", "beta"]},
    },
    {
        "name": "record",
        "in": "query",
        "description": "`1` to have the session recorded, where the server does that for those who ask.",
        "schema": {"type": "string"},
    },
]

MINICPMO_PARAMETERS = [
    {
        "name": "resumable",
        "in": "query",
        "description": "`1` where a client of MiniCPM-o's protocol means to come back to its session after its network was lost.",
        "schema": {"type": "string"},
    },
    {
        "name": "mode",
        "in": "query",
        "description": "The session is one of MiniCPM-o's protocol, and of this kind.",
        "schema": {"type": "string", "enum": ["chat", "audio", "video"]},
    },
    {
        "name": "resume",
        "in": "query",
        "description": "The token of a session of MiniCPM-o's protocol whose connection was lost.",
        "schema": {"type": "string"},
    },
    {
        "name": "after",
        "in": "query",
        "description": "With `resume`, the `seq` of the last event that the client has seen.",
        "schema": {"type": "integer", "minimum": 0},
    },
]

SESSION_DESCRIPTION = (
    "The request must be a WebSocket handshake, and is then answered with 101. What is said from then on is in the reference of the "
    "Realtime API."
)
SESSION_ERRORS = {
    400: "A parameter is malformed.",
    404: "There is no such model.",
    426: "The request is no WebSocket handshake.",
    503: UNAVAILABLE,
}
SECRET_ERRORS = COMPRESSION_ERRORS | {
    400: MALFORMED_REQUEST,
    404: "There is no such model, or none that transcribes.",
    413: "The body, or the session in it, is too large.",
    503: UNAVAILABLE,
}
AUDIO_ERRORS = {
    400: "The request is malformed, or asks for what the ear or the voice can't do; `param` says where.",
    404: "There is no such model.",
    501: "This server has no ears and no voice; `message` says how to get them.",
    502: "The server behind the ear or the voice failed.",
    503: UNAVAILABLE,
    504: "The server behind the ear or the voice did not answer in time.",
}

RECORDING_NOT_FOUND = {404: "There is no such session, or no such file of it."}
RECORDING_ERRORS = RECORDING_NOT_FOUND | {409: "The session has not ended.", 502: "Where recordings are kept does not answer."}

PRESET_ERRORS = {
    404: "There is no such preset, sound or voice.",
    501: "This server can't read files of sound; `message` says how to change that.",
    503: UNAVAILABLE,
}
UPLOAD_ERRORS = (
    PRESET_ERRORS
    | COMPRESSION_ERRORS
    | {
        400: "The request is malformed, or the sound can't be read, or is too long; `param` says where.",
        409: "There are too many voices already.",
        413: f"The body is over {BODY_LIMIT_BYTES >> 20} MiB, or the file over {minicpmo.MAX_UPLOAD_BYTES >> 20} MiB.",
    }
)
VOICE_NOT_FOUND = {404: "There is no such voice."}

TICKET_NOT_FOUND = {404: "There is no such ticket, or it is another's, or it has ended."}
WORKER_NOT_FOUND = {404: "There is no such worker."}

CALL_NOT_FOUND = {404: "There is no such call."}
SIP_ERRORS = {400: "The call came over WebRTC, and can't be asked for that."} | CALL_NOT_FOUND

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/responses"): Operation(
        "createResponse",
        "Responses",
        "Answer, whole or as a stream of events",
        Response,
        CreateRequest,
        StreamEvent,
        REQUEST_ERRORS,
        description="With `stream`, the answer is told as server-sent events while it is made. Unless `store` is false it is kept, so that "
        "`previous_response_id` can continue the conversation. Without a `model`, the first of those configured answers. Fields that "
        "this server does not know are handed to the model's engine.",
        links=dict.fromkeys(("getResponse", "deleteResponse", "cancelResponse", "listInputItems"), "id"),
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "countInputTokens",
        "Responses",
        "Count the tokens of an input",
        InputTokens,
        InputTokensRequest,
        errors=REQUEST_ERRORS,
        description="They are counted by the engine that would read them, and nothing is answered or kept.",
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        "getResponse", "Responses", "Retrieve a response", Response, errors={400: MALFORMED_REQUEST} | RESPONSE_NOT_FOUND
    ),
    ("DELETE", "/v1/responses/{id}"): Operation(
        "deleteResponse",
        "Responses",
        "Delete a response",
        ResponseDeleted,
        errors=RESPONSE_NOT_FOUND,
        description="Conversations that go on from it can't be continued any more.",
    ),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        "cancelResponse",
        "Responses",
        "Cancel a response in the background",
        None,
        errors={400: "The response is none in the background."} | RESPONSE_NOT_FOUND,
        description="This server makes no responses in the background yet, so that this is always refused. Any other "
        "response is cancelled by "
        "closing the connection on which it was asked for.",
    ),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        "listInputItems",
        "Responses",
        "List the items that a response was asked with",
        ItemList,
        errors={400: "A parameter is malformed, or `after` is none of its items; `param` says which."} | RESPONSE_NOT_FOUND,
        query=PAGE_PARAMETERS,
    ),
    ("GET", "/v1/realtime"): Operation(
        "openSession",
        "Realtime",
        "Open a session",
        None,
        errors=SESSION_ERRORS,
        query=[*SESSION_PARAMETERS, *MINICPMO_PARAMETERS],
        description=f"{SESSION_DESCRIPTION} With `mode`, or without any sign that the Realtime API is meant, "
        f"MiniCPM-o's protocol is spoken.",
    ),
    ("GET", "/openai/v1/realtime"): Operation(
        "openSessionOnAzure",
        "Realtime",
        "The same, for clients of Azure",
        None,
        errors=SESSION_ERRORS,
        query=SESSION_PARAMETERS,
        description=SESSION_DESCRIPTION,
    ),
    ("GET", "/openai/realtime"): Operation(
        "openSessionOnAzurePreview",
        "Realtime",
        "The same, for clients of Azure's preview",
        None,
        errors=SESSION_ERRORS,
        query=SESSION_PARAMETERS,
        description=SESSION_DESCRIPTION,
    ),
    ("POST", "/v1/realtime/client_secrets"): Operation(
        "createClientSecret",
        "Realtime",
        "Make a secret that opens sessions",
        ClientSecret,
        ClientSecretRequest,
        errors=SECRET_ERRORS,
        description="For a client that is not trusted with a key, such as a page in a browser. It opens sessions that "
        "begin with what is in "
        "`session`, until it expires, and nothing else.",
    ),
    ("POST", "/v1/realtime/sessions"): Operation(
        "createBetaSession", "Realtime", "The same, as the beta has it", BetaSession, BetaSessionRequest, errors=SECRET_ERRORS
    ),
    ("POST", "/v1/realtime/transcription_sessions"): Operation(
        "createBetaTranscriptionSession",
        "Realtime",
        "The same, for sessions of the beta that only transcribe",
        BetaSession,
        BetaSessionRequest,
        errors=SECRET_ERRORS,
    ),
    ("POST", "/v1/realtime/calls"): Operation(
        "createCall",
        "Realtime",
        "Call, over WebRTC",
        "application/sdp",
        CallForm,
        errors=SECRET_ERRORS | {404: "There is no such model.", 501: "This server can't take calls; `message` says how to change that."},
        query=SESSION_PARAMETERS,
        description="The answer to the offer; `location` has the call's id. What is said from then on, on the data "
        "channel `oai-events`, is in "
        "the reference of the Realtime API.",
        request_media_type="multipart/form-data",
        extra_request_media_types=("application/sdp",),
        status=201,
    ),
    ("POST", "/v1/realtime/calls/{id}/hangup"): Operation("hangUpCall", "Realtime", "End a call", "text/plain", errors=CALL_NOT_FOUND),
    ("POST", "/v1/realtime/calls/{id}/accept"): Operation("acceptCall", "Realtime", "Accept a call over SIP", None, errors=SIP_ERRORS),
    ("POST", "/v1/realtime/calls/{id}/reject"): Operation("rejectCall", "Realtime", "Reject a call over SIP", None, errors=SIP_ERRORS),
    ("POST", "/v1/realtime/calls/{id}/refer"): Operation("referCall", "Realtime", "Hand on a call over SIP", None, errors=SIP_ERRORS),
    ("GET", "/api/presets"): Operation("listPresets", "MiniCPM-o", "List the presets, by mode", minicpmo.Presets, errors=PRESET_ERRORS),
    ("GET", "/api/presets/{mode}/{id}/audio"): Operation(
        "getPresetAudio", "MiniCPM-o", "The sounds of a preset", minicpmo.PresetAudio, errors=PRESET_ERRORS
    ),
    ("GET", "/api/default_ref_audio"): Operation(
        "getDefaultVoice", "MiniCPM-o", "The voice of clients that bring none", minicpmo.ReferenceAudio, errors=PRESET_ERRORS
    ),
    ("GET", "/api/assets/ref_audio"): Operation("listVoices", "MiniCPM-o", "List the voices that were kept", minicpmo.VoiceList),
    ("POST", "/api/assets/ref_audio"): Operation(
        "keepVoice",
        "MiniCPM-o",
        "Keep a voice",
        minicpmo.VoiceUploadResult,
        minicpmo.VoiceUpload,
        errors=UPLOAD_ERRORS,
        description="A file in one of the formats of `POST /v1/audio/transcriptions`, of a minute at most.",
        links=dict.fromkeys(("getVoice", "dropVoice"), "id"),
    ),
    ("GET", "/api/assets/ref_audio/{id}"): Operation(
        "getVoice", "MiniCPM-o", "A voice that was kept", minicpmo.ReferenceAudio, errors=PRESET_ERRORS
    ),
    ("DELETE", "/api/assets/ref_audio/{id}"): Operation(
        "dropVoice", "MiniCPM-o", "Keep a voice no longer", minicpmo.VoiceUploadResult, errors=VOICE_NOT_FOUND
    ),
    ("GET", "/api/frontend_defaults"): Operation("getFrontendDefaults", "MiniCPM-o", "What a page begins with", minicpmo.FrontendDefaults),
    ("POST", "/v1/audio/transcriptions"): Operation(
        "createTranscription",
        "Audio",
        "Write a recording down",
        Transcription,
        TranscriptionForm,
        TranscriptEvent,
        AUDIO_ERRORS | {413: f"The file is over {FILE_LIMIT_BYTES >> 20} MiB."},
        description="WAV, FLAC, MP3 or Ogg, of two hours at most. With `stream` a stretch is told as soon as it is written down. With "
        "`response_format` `verbose_json` the answer has `segments` and `words`, too; `text`, `srt` and `vtt` are plain text.",
        request_media_type="multipart/form-data",
        extra_response_media_types=("text/plain",),
    ),
    ("POST", "/v1/audio/speech"): Operation(
        "createSpeech",
        "Audio",
        "Read a text aloud",
        "audio/*",
        SpeechRequest,
        SpeechEvent,
        AUDIO_ERRORS | COMPRESSION_ERRORS | {413: REQUEST_ERRORS[413]},
        description="The sound is sent while it is made: as a file, or with `stream_format` `sse` as events.",
    ),
    ("GET", "/v1/sessions"): Operation(
        "listSessions",
        "Sessions",
        "List the sessions that were recorded",
        RecordedSessionList,
        errors={400: "A parameter is malformed, or `after` is none of the sessions; `param` says which."},
        query=SESSION_PAGE_PARAMETERS,
    ),
    ("GET", "/v1/sessions/{id}"): Operation("getSession", "Sessions", "Show a session", RecordedSession, errors=RECORDING_NOT_FOUND),
    ("DELETE", "/v1/sessions/{id}"): Operation("deleteSession", "Sessions", "Delete a recording", SessionDeleted, errors=RECORDING_ERRORS),
    ("GET", "/v1/sessions/{id}/events"): Operation(
        "getSessionEvents",
        "Sessions",
        "What was said, event by event",
        "application/x-ndjson",
        errors=RECORDING_ERRORS | {416: "The file has nothing of what `range` asks for."},
    ),
    ("GET", "/v1/sessions/{id}/files/{name}"): Operation(
        "getSessionFile",
        "Sessions",
        "One of its files, such as `in.wav`",
        "audio/*",
        errors=RECORDING_ERRORS | {416: "The file has nothing of what `range` asks for."},
        description="With `range`, a part of it, with the status 206.",
    ),
    ("GET", "/v1/sessions/{id}/download"): Operation(
        "downloadSession", "Sessions", "All of its files, in one zip file", "application/zip", errors=RECORDING_ERRORS
    ),
    ("GET", "/v1/models"): Operation("listModels", "Models", "List the models", ModelList),
    ("GET", "/v1/models/{model}"): Operation("retrieveModel", "Models", "Retrieve a model", Model, errors={404: "There is no such model."}),
    ("GET", "/livez"): Operation("getLiveness", "Server", "Whether the process lives", Health),
    ("GET", "/readyz"): Operation("getReadiness", "Server", "Whether new work is taken", Health, errors={503: "It is not."}),
    ("GET", "/health"): Operation("getHealth", "Server", "The same as `/readyz`", Health, errors={503: "No new work is taken."}),
    ("GET", "/version"): Operation("getVersion", "Server", "Name and version", Version),
    ("GET", "/status"): Operation("getStatus", "Queue", "How it stands", queue.GatewayStatus),
    ("GET", "/queue"): Operation("getQueue", "Queue", "Who waits, and who is served", queue.QueueStatus),
    ("GET", "/api/queue"): Operation("listTickets", "Queue", "The same", queue.QueueStatus),
    ("GET", "/api/queue/{id}"): Operation("getTicket", "Queue", "Retrieve a ticket", queue.QueueTicket, errors=TICKET_NOT_FOUND),
    ("DELETE", "/api/queue/{id}"): Operation(
        "cancelTicket",
        "Queue",
        "Have a ticket wait no longer",
        queue.TicketCancelled,
        errors=TICKET_NOT_FOUND | {409: "The ticket has its place already."},
        description="Its client gets `worker_busy`.",
    ),
    ("GET", "/api/config/eta"): Operation("getEtaConfig", "Queue", "What estimates are made from", queue.EtaConfig),
    ("GET", "/workers"): Operation("listWorkers", "Queue", "List the workers", queue.WorkerList),
    ("GET", "/workers/{id}"): Operation("getWorker", "Queue", "Retrieve a worker", queue.WorkerStatusEntry, errors=WORKER_NOT_FOUND),
    ("POST", "/workers/{id}/drain"): Operation(
        "drainWorker",
        "Queue",
        "Give no more places with a worker",
        queue.WorkerStatusEntry,
        errors=WORKER_NOT_FOUND,
        description="Conversations under way go on.",
    ),
    ("POST", "/workers/{id}/resume"): Operation(
        "resumeWorker",
        "Queue",
        "Give places again with a worker that was drained",
        queue.WorkerStatusEntry,
        errors=WORKER_NOT_FOUND | {409: "The worker ends with its last session."},
        description="One that was not drained stays as it is.",
    ),
    ("DELETE", "/workers/{id}"): Operation(
        "removeWorker",
        "Queue",
        "Forget a worker",
        queue.WorkerRemoved,
        errors=WORKER_NOT_FOUND,
        description="Conversations under way go on. A worker that joins again, or is configured when the server "
        "starts again, is there again.",
    ),
    ("GET", "/v1/workers/join"): Operation(
        "joinAsWorker",
        "Server",
        "Join as a worker",
        None,
        errors={409: "The worker speaks another version.", 426: "The request is no WebSocket handshake.", 503: UNAVAILABLE},
        description="The request must be a WebSocket handshake with the key of workers, and is then answered with "
        "101. `antiphon worker` makes it;"
        " what is said from then on is between two antiphons of the same version.",
    ),
    ("GET", "/metrics"): Operation("getMetrics", "Server", "What is counted, for Prometheus", "text/plain"),
    ("GET", "/openapi.json"): Operation("getDocument", "Server", "This document", Document),
    ("GET", "/docs"): Operation("getDocumentPage", "Server", "This document as a page", "text/html"),
    ("GET", "/"): Operation(
        "getFrontPage", "Server", "Lead a browser to `/docs`", "text/html", errors={404: "The client takes no HTML."}, status=307
    ),
}

COMMON_ERRORS = {
    400: "The request is not valid HTTP.",
    408: "The request did not arrive in time.",
    429: "A limit of the key is reached, or there are too many connections from the client's address.",
    431: f"The request's head is over {HEAD_LIMIT_BYTES >> 10} KiB.",
    500: "A defect of the server, or its store can't be used.",
    503: "There are too many connections.",
}
"""Errors of every route."""

GUARDED_ERRORS = {
    403: "The key may not do that, or the page that asks is another site's.",
    421: "The request is for another host.",
}
"""Errors of every route but the probes."""

AUTHENTICATION_ERRORS = {401: "The key is missing or wrong."}
"""Errors of routes that need a key."""


class Header(NamedTuple):
    """
    A response header.

    Attributes:
        statuses: the statuses that have it; empty for all.
        operation_id: the operation that has it; None for all.
        is_required: whether it is always there.
    """

    description: str
    schema: Mapping[str, Any]
    statuses: Sequence[int] = ()
    operation_id: str | None = None
    is_required: bool = False


_COUNT = {"type": "integer", "minimum": 0}
_NAMES = {"type": "string", "examples": ["web_search, computer"]}
_DURATION = {"type": "string", "examples": ["1.5s", "2m30s"]}

HEADERS = {
    "x-request-id": Header(
        "The request's id, which is in the server's log.", {"type": "string", "pattern": "^req_[0-9a-f]{48}$"}, is_required=True
    ),
    "openai-processing-ms": Header("Milliseconds until the answer began.", _COUNT),
    "openai-version": Header("The version of the API.", {"type": "string"}),
    "retry-after": Header("Seconds after which trying again may help.", {"type": "integer", "minimum": 1}, statuses=(429, 503)),
    "location": Header(
        "The call's address; its last part is its id.", {"type": "string"}, statuses=(201,), operation_id="createCall", is_required=True
    ),
    "www-authenticate": Header("How to show a key.", {"const": "Bearer"}, statuses=(401,), is_required=True),
    "x-ratelimit-limit-requests": Header("Requests a minute that the key may make.", _COUNT),
    "x-ratelimit-remaining-requests": Header("How many of them are left.", _COUNT),
    "x-ratelimit-reset-requests": Header("The time until all of them are.", _DURATION),
    "x-ratelimit-limit-tokens": Header("Tokens a minute that the key may take.", _COUNT),
    "x-ratelimit-remaining-tokens": Header("How many of them are left.", _COUNT),
    "x-ratelimit-reset-tokens": Header("The time until all of them are.", _DURATION),
    "antiphon-tools-not-offered": Header("Tools that the model was not offered.", _NAMES, statuses=(200,), operation_id="createResponse"),
    "antiphon-grammars-not-enforced": Header(
        "Tools whose grammar the model is not held to.", _NAMES, statuses=(200,), operation_id="createResponse"
    ),
    "antiphon-items-not-told": Header(
        "Types of items that the model was not told.", _NAMES, statuses=(200,), operation_id="createResponse"
    ),
}
"""The `x-ratelimit` headers are sent for keys with limits."""
