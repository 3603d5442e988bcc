"""
`POST /v1/responses/compact`: a conversation made shorter. Its user messages stay, and one item stands for all the rest:
a summary by the model, encrypted, which the next requests give back.
"""

import time
from collections.abc import Sequence

from msgspec import UNSET, structs
from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import ClientError, UpstreamError
from antiphon.offload import offload
from antiphon.protocols.responses.compaction import SUMMARY_PROMPT
from antiphon.protocols.responses.response_object import complete_input_item
from antiphon.runtime.core.ids import new_id
from antiphon.runtime.service import Service
from antiphon.server.http.auth import EndpointFunction, request_caller
from antiphon.server.http.body import BODY_LEASE_SCOPE_KEY, read_json_body
from antiphon.server.http.errors import json_response
from antiphon.server.responses.create import PreparedResponse, ResponseCollector, drive_response, prepare_response
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import encode
from antiphon.wire.responses import items, parts, response as wire
from antiphon.wire.responses.endpoints import CompactedResponse, CompactRequest
from antiphon.wire.responses.events import TERMINAL_EVENTS
from antiphon.wire.responses.request import CreateRequest, check_request

_reader: Reader[CompactRequest] = Reader(CompactRequest)


def compact_conversation(service: Service) -> EndpointFunction:
    """The endpoint of `POST /v1/responses/compact`."""

    async def compact(request: Request) -> Response:
        started_at = time.perf_counter()
        body = await read_json_body(request)
        service.live_sessions.check_admission()
        create_request = await offload(len(body), _decode, body)
        filled_request = await service.prompts.fill(request_caller(request.scope).tenant, create_request, len(body))
        size_bytes = len(body) + filled_request.added_bytes
        request.scope[BODY_LEASE_SCOPE_KEY].extend(size_bytes)
        # Of a prompt, only the messages: its tools, its format and its limits are those of an answer, not of a summary.
        create_request = structs.replace(create_request, instructions=filled_request.request.instructions, prompt=UNSET)
        prepared_response = await prepare_response(service, request.scope, create_request, size_bytes)
        prepared_response = structs.replace(prepared_response, rewriter=None)  # a summary is for models to read
        response = await _run(service, request, prepared_response, started_at)
        if response is None:
            return Response(status_code=499)  # the client hung up; only the log sees this
        resolved_request = prepared_response.resolved_request
        # Without the question for the summary, which is the last input item.
        conversation = (*resolved_request.previous_items, *resolved_request.input_items[:-1])
        cipher = await service.content_cipher()
        encrypted_content = cipher.encrypt(_summary(response).encode(), resolved_request.tenant, "compaction")
        if encrypted_content is None:
            raise UpstreamError("The model's summary of the conversation is too long.", code="server_error")
        user_messages = [
            complete_input_item(item, new_id) for item in conversation if isinstance(item, items.Message) and item.role == "user"
        ]
        compacted_response = CompactedResponse(
            id=response.id,
            created_at=resolved_request.created_at,
            output=[*user_messages, items.Compaction(id=new_id("cmp"), encrypted_content=encrypted_content)],
            usage=response.usage or _NO_USAGE,
        )
        content = await offload(resolved_request.size_bytes, encode, compacted_response)
        return json_response(content, headers=dict(prepared_response.answer_headers))

    return compact


def _decode(body: bytes) -> CreateRequest:
    """The request for the summary."""
    check_structure(body)
    compact_request = _reader.read(body)
    create_request = CreateRequest(
        model=compact_request.model,
        input=compact_request.input or [],
        instructions=compact_request.instructions or None,
        prompt=compact_request.prompt or None,
        previous_response_id=compact_request.previous_response_id or None,
        prompt_cache_key=compact_request.prompt_cache_key or None,
        truncation="auto",  # what no longer fits at all is better summarised in part than not at all
        store=False,
    )
    check_request(create_request)
    if not create_request.input and not create_request.previous_response_id:
        raise ClientError("One of 'input' or 'previous_response_id' must be provided.", code="missing_required_parameter", param="input")
    question = items.Message(role="user", content=[parts.InputText(text=SUMMARY_PROMPT)])
    return structs.replace(create_request, input=[*create_request.input_items, question])


async def _run(service: Service, request: Request, prepared_response: PreparedResponse, started_at: float) -> wire.Response | None:
    """
    The model's response; None if the client has hung up.

    Raises:
        ApiError: it failed.
    """
    client = ResponseCollector()
    await drive_response(service, request.scope, prepared_response, client, started_at, lambda run: run())
    if client.error is not None:
        raise client.error
    return client.last_event.response if isinstance(client.last_event, TERMINAL_EVENTS) else None


def _summary(response: wire.Response) -> str:
    """
    The text of the response.

    Raises:
        UpstreamError: it has none, or was cut off: the rest of the conversation would be lost.
    """
    if response.status != "completed":
        reason = response.incomplete_details.reason if response.incomplete_details else None
        raise UpstreamError(f"The model did not finish its summary of the conversation ({reason}).", code="server_error")
    summary = _text(response.output).strip()
    if not summary:
        raise UpstreamError("The model wrote no summary of the conversation.", code="server_error")
    return summary


def _text(output: Sequence[items.Item]) -> str:
    return "\n\n".join(item.text for item in output if isinstance(item, items.Message))


_NO_USAGE = wire.ResponseUsage(
    input_tokens=0,
    input_tokens_details=wire.InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
    output_tokens=0,
    output_tokens_details=wire.OutputTokensDetails(reasoning_tokens=0),
    total_tokens=0,
)
"""Of an engine that doesn't count."""
