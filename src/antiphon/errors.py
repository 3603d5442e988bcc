"""
Errors, split by who caused them: the client, the upstream, or this server.

An error carries what the wire needs (status, type, code, message, param); each protocol renders it in its own shape.
Texts follow the original API, so that a user who searches for one finds help.
"""

from collections.abc import Container, Iterable, Sequence
from difflib import get_close_matches
from math import isnan
from typing import Any, Literal

MAX_RETRY_AFTER_S = 86_400 * 365
"""One year: longer waits are cut to it."""

SHUTTING_DOWN_CODE = "server_shutting_down"
"""The code of `shutting_down`, and of the event `EngineLost` with which an engine ends for that reason."""

SESSION_CLOSED_CODE = "session_closed"
"""The code of the error with which an operator ends a session."""

STORE_RETRY_S = 5
"""When to try again after the store failed."""


class ApiError(Exception):
    """
    An error that ends a request, with what the client gets to read.

    Its values may come from a worker or an upstream, which may be wrong: a status outside 400 to 599 is ignored, and so
    are seconds that no `Retry-After` header can hold.

    Attributes:
        message: for people; names what was expected and what was received.
        operator_message: for the operator of this server; it may say more.
        code: the machine-readable code on the wire, or None.
        param: path of the offending field, such as `input[0].content[1].type`, or None.
        status: the HTTP status.
        type: the error family on the wire.
        retry_after_s: seconds after which a retry may help, or None.
        cause: what an upstream server did, in a word such as `unreachable` or its status; None where there was none. It
            is for the log, and for the engine that decides whether another server may answer; clients don't see it.
    """

    status = 500
    type = "server_error"
    cause: str | None = None

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        status: int | None = None,
        type: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.operator_message = message
        self.code = code
        self.param = param
        self.status = status if status is not None and 400 <= status < 600 else self.status
        self.type = type or self.type
        self.retry_after_s = None if retry_after_s is None or isnan(retry_after_s) else min(max(retry_after_s, 0), MAX_RETRY_AFTER_S)

    def body(self) -> dict[str, Any]:
        """The error object of the OpenAI HTTP APIs: `{"error": {message, type, param, code}}`."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class ClientError(ApiError):
    """The request can't be served as it is; nothing was done."""

    status = 400
    type = "invalid_request_error"


class UpstreamError(ApiError):
    """The engine, or the server behind it, failed, refused or stopped answering."""

    status = 502
    type = "server_error"


class ServerError(ApiError):
    """A defect or a limit of this server."""


class StoreError(ServerError):
    """
    The store failed. Clients are told that it did, and when to try again, but nothing about the store itself.

    Attributes:
        operator_message: which store it is, what is wrong, and what to do about it.
    """

    def __init__(self, operator_message: str, *, is_temporary: bool) -> None:
        if is_temporary:
            super().__init__(
                "The server can't use its store now. Please try again later.",
                status=503,
                type="service_unavailable_error",
                code="store_unavailable",
                retry_after_s=STORE_RETRY_S,
            )
        else:
            super().__init__(
                "The server's store could not do this. The operator finds the reason in the server's log.", code="store_failed"
            )
        self.operator_message = operator_message


def quote_list(values: Iterable[str], conjunction: str = "and") -> str:
    """Values quoted and joined as in the original's messages: `'a', 'b', and 'c'`."""
    return _join([f"'{value}'" for value in values], conjunction)


def _join(phrases: Sequence[str], conjunction: str) -> str:
    if len(phrases) < 3:
        return f" {conjunction} ".join(phrases)
    return f"{', '.join(phrases[:-1])}, {conjunction} {phrases[-1]}"


def is_or_are(names: Sequence[str]) -> str:
    """What there is, behind `there`: `is 'a'`, or `are 'a' and 'b'`."""
    return f"{'is' if len(names) == 1 else 'are'} {quote_list(names)}"


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """A question, to put behind the sentence that says that `name` is unknown; empty if none of the others is similar."""
    similar = get_close_matches(name, known_names, n=1)
    return f" Did you mean {quote_list(similar)}?" if similar else ""


def shorten(value: object, max_length: int = 100) -> str:
    """A client's value for a message, shortened to `max_length` characters."""
    text = str(value)
    return text if len(text) <= max_length else f"{text[:max_length]}…"


def unparsable_json(reason: str) -> ClientError:
    """The body is not JSON; `reason` says where."""
    return ClientError(
        "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library correctly. "
        f"This API expects a JSON payload, but what was sent was not valid JSON: {reason}.)"
    )


def nesting_too_deep(limit: int, *, is_event: bool = False) -> ClientError:
    """Objects and arrays in the body, or in an event, are nested more than `limit` levels deep."""
    reason = f"it is nested more than {limit} levels deep"
    return invalid_json(reason) if is_event else ClientError(f"We could not parse the JSON body of your request: {reason}.")


def too_many_values(limit: int) -> ClientError:
    """The body has more JSON values than `limit`."""
    return ClientError(
        f"The request has too many JSON values: the limit is {limit:,} in all its objects and arrays together.",
        status=413,
        code="request_too_large",
    )


def missing_parameter(param: str) -> ClientError:
    """A required field is absent."""
    return ClientError(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)


def mutually_exclusive(param: str, names: Iterable[str]) -> ClientError:
    """At most one of the fields `names` may be given; `param` is the one to leave out."""
    names = tuple(names)
    return ClientError(
        f"Mutually exclusive parameters: {quote_list(names)}. Ensure you are only providing one of: {quote_list(names, 'or')}.",
        code="mutually_exclusive_parameters",
        param=param,
    )


def invalid_value(param: str | None, value: object, allowed_values: Iterable[str]) -> ClientError:
    """A field's value is none of those allowed."""
    return ClientError(
        f"Invalid value: '{shorten(value)}'. Supported values are: {quote_list(allowed_values)}.", code="invalid_value", param=param
    )


def invalid_type(param: str | None, expectation: str, actual: str) -> ClientError:
    """
    A field, or without `param` the whole body, has the wrong JSON type; `expectation` and `actual` come with their
    article.
    """
    target = f" for '{param}'" if param else ""
    return ClientError(f"Invalid type{target}: expected {expectation}, but got {actual} instead.", code="invalid_type", param=param)


def below_minimum(param: str, kind: Literal["integer", "decimal"], minimum: float, value: object) -> ClientError:
    """A number is too small."""
    return ClientError(
        f"Invalid '{param}': {kind} below minimum value. Expected a value >= {minimum}, but got {shorten(value)} instead.",
        code=f"{kind}_below_min_value",
        param=param,
    )


def above_maximum(param: str, kind: Literal["integer", "decimal"], maximum: float, value: object) -> ClientError:
    """A number is too large."""
    return ClientError(
        f"Invalid '{param}': {kind} above maximum value. Expected a value <= {maximum}, but got {shorten(value)} instead.",
        code=f"{kind}_above_max_value",
        param=param,
    )


def too_short(param: str, kind: Literal["string", "array"], minimum: int, length: int) -> ClientError:
    """A string or an array is shorter than `minimum`."""
    article = "a" if kind == "string" else "an"
    problem, code = (f"{kind} too short", f"{kind}_below_min_length") if length else (f"empty {kind}", f"empty_{kind}")
    actual = f"{article} {kind} with length {length}" if length else f"an empty {kind}"
    return ClientError(
        f"Invalid '{param}': {problem}. Expected {article} {kind} with minimum length {minimum}, but got {actual} instead.",
        code=code,
        param=param,
    )


def too_long(param: str, kind: Literal["string", "array"], maximum: int, length: int) -> ClientError:
    """A string or an array is longer than `maximum`."""
    article = "a" if kind == "string" else "an"
    return ClientError(
        f"Invalid '{param}': {kind} too long. "
        f"Expected {article} {kind} with maximum length {maximum}, but got {article} {kind} with length {length} instead.",
        code=f"{kind}_above_max_length",
        param=param,
    )


def too_many_properties(param: str, maximum: int, count: int) -> ClientError:
    """An object has more than `maximum` properties."""
    return ClientError(
        f"Invalid '{param}': too many properties. "
        f"Expected an object with at most {maximum} properties, but got an object with {count} properties instead.",
        code="object_above_max_properties",
        param=param,
    )


def property_name_too_long(param: str, name: str, maximum: int) -> ClientError:
    """A property's name is longer than `maximum`."""
    return ClientError(
        f"Invalid property name in '{param}': '{shorten(name)}' is too long. "
        f"Expected a string with maximum length {maximum}, but got a string with length {len(name)} instead.",
        code="property_name_above_max_length",
        param=f"{param}.{shorten(name)}",
    )


def pattern_mismatch(param: str, pattern: str) -> ClientError:
    """A string does not match the required pattern."""
    return ClientError(
        f"Invalid '{param}': string does not match pattern. Expected a string that matches the pattern '{pattern}'.",
        code="invalid_value",
        param=param,
    )


def invalid_base64(param: str) -> ClientError:
    """A string is not complete, padded base64."""
    return ClientError(f"Invalid '{param}'. Expected base64-encoded audio bytes but got invalid bytes.", code="invalid_value", param=param)


def invalid_url(param: str, *beginnings: str) -> ClientError:
    """A URL that begins otherwise than it may."""
    expectation = quote_list(beginnings, "or")
    return ClientError(f"Invalid '{param}': a URL must begin with {expectation}.", code="invalid_url", param=param)


def invalid_json(reason: str) -> ClientError:
    """A message is not JSON; `reason` says where."""
    return ClientError(f"Invalid JSON: {reason}.", code="invalid_json")


def invalid_event(message: str) -> ClientError:
    """A message is JSON, but no event."""
    return ClientError(message, code="invalid_event")


def invalid_modalities(param: str, modalities: Iterable[str], combinations: Iterable[Iterable[str]]) -> ClientError:
    """A combination of modalities that is not supported."""
    choices = " and ".join(str(list(each)) for each in combinations)
    return ClientError(f"Invalid modalities: {list(modalities)}. Supported combinations are: {choices}.", code="invalid_value", param=param)


def unsupported_parameter(param: str, model: str | None) -> ClientError:
    """The field requests what this model's engine, or without `model` this server, can't do."""
    problem = f"'{param}' is not supported with the '{model}' model" if model else f"this server does not support '{param}'"
    return ClientError(f"Unsupported parameter: {problem}.", code="unsupported_parameter", param=param)


def unsupported_value(param: str, value: object, model: str | None, allowed_values: Iterable[str]) -> ClientError:
    """The field is known, but this model's engine, or without `model` this server, supports only other values of it."""
    problem = f"'{value}' is not supported with the '{model}' model" if model else f"this server does not support '{value}' for '{param}'"
    return ClientError(
        f"Unsupported value: {problem}. Supported values are: {quote_list(allowed_values)}.", code="unsupported_value", param=param
    )


def tool_choice_not_found(param: str, *names: str) -> ClientError:
    """`tool_choice` names tools, or `required`, and the request has none of them."""
    choice = shorten(quote_list(names, "or"))
    return ClientError(f"Tool choice {choice} not found in 'tools' parameter.", code="invalid_value", param=param)


def describe_model_name(name: str, *, is_listed: bool) -> str:
    """
    What clients may call a model.

    Args:
        name: as configured; with a `*` at its end it stands for all names that begin so.
        is_listed: whether only the names work that the model's server lists.
    """
    if not name.endswith("*"):
        return f"'{name}'"
    prefix = name.removesuffix("*")
    if is_listed:
        return f"the models in `GET /v1/models` whose names begin with '{prefix}'" if prefix else "the models in `GET /v1/models`"
    example = example_model_name(name)
    return f"any name that begins with '{prefix}', such as '{example}'" if prefix else f"any name, such as '{example}'"


def example_model_name(name: str) -> str:
    """A name that a model answers to; `name` as configured."""
    return f"{name[:-1] or 'model-'}1" if name.endswith("*") else name


def model_not_found(name: str, available: Iterable[str], upstream_names: Container[str] = ()) -> ClientError:
    """
    No model has that name.

    Args:
        available: the names of those that there are, as configured.
        upstream_names: those of them that stand only for the names that the model's server lists.
    """
    names = _join([describe_model_name(each, is_listed=each in upstream_names) for each in available], "and")
    hint = f" This server has {names}." if names else " This server has no models configured."
    return ClientError(
        f"The model `{shorten(name)}` does not exist or you do not have access to it.{hint}",
        code="model_not_found",
        param="model",
        status=404,
    )


def overloaded_error(message: str, *, code: str = "server_is_overloaded", retry_after_s: float | None = 1) -> ServerError:
    """The server has no room for the request now (503); `retry_after_s` says when to try again."""
    return ServerError(message, status=503, type="service_unavailable_error", code=code, retry_after_s=retry_after_s)


def shutting_down() -> ServerError:
    """The server is about to stop (503); another one, or the same one restarted, may answer in a few seconds."""
    return overloaded_error("The server is shutting down. Please try again.", code=SHUTTING_DOWN_CODE, retry_after_s=5)


def only_embeds(model: str) -> ClientError:
    """The model makes vectors of texts, and was asked for an answer."""
    return ClientError(
        f"The model '{model}' makes vectors of texts and gives no answers: it can be used with /v1/embeddings alone.",
        code="unsupported_model",
        param="model",
    )


def invalid_tool_call(problem: str) -> UpstreamError:
    """A model server's tool call can't be followed; `problem` says why, beginning with the call."""
    return UpstreamError(f"The model server sent an invalid tool call: {problem}.", code="server_error")


def not_found(what: str) -> ClientError:
    """There is no such thing; `what` names it, and begins the sentence."""
    return ClientError(f"{what} does not exist.", status=404, code="not_found")


def response_not_found(response_id: str) -> ClientError:
    """There is no such response, or it is another tenant's."""
    return ClientError(f"Response with id '{shorten(response_id)}' not found.", status=404)


def response_deleted() -> ClientError:
    """The response was deleted while it was made."""
    return ClientError("This response was deleted while it was made.", status=404, code="response_deleted")


def previous_response_not_found(response_id: str) -> ClientError:
    """`previous_response_id` names nothing that is stored."""
    return ClientError(
        f"Previous response with id '{shorten(response_id)}' not found.", code="previous_response_not_found", param="previous_response_id"
    )


def previous_response_not_ready(response_id: str) -> ClientError:
    """`previous_response_id` names a response that has not ended, and so has no output yet."""
    return ClientError(
        f"Previous response with id '{shorten(response_id)}' has not ended yet. Please try again when it has.",
        code="previous_response_not_ready",
        param="previous_response_id",
    )


def invalid_encrypted_content(param: str) -> ClientError:
    """Encrypted content was changed, is another tenant's, or was encrypted with a key that this server does not have."""
    return ClientError(
        f"The encrypted content of '{param}' could not be verified. Reason: Encrypted content could not be decrypted or parsed.",
        code="invalid_encrypted_content",
        param=param,
    )


def context_length_exceeded(window: int, input_tokens: int) -> ClientError:
    """
    The input does not fit the model's context window, and `truncation` forbids dropping any of it; both in tokens.
    """
    return ClientError(
        "Your input exceeds the context window of this model. Please adjust your input and try again. "
        f"(This model's maximum context length is {window} tokens; your input is {input_tokens} tokens.)",
        code="context_length_exceeded",
        param="input",
    )


def history_too_large(what: str) -> ClientError:
    """The conversation that a request continues is too large; `what` says how, ending the sentence."""
    return ClientError(
        f"The conversation of the previous response is too large: {what}. Start a new one, without `previous_response_id`.",
        code="context_length_exceeded",
        param="previous_response_id",
    )


def conversation_too_large(what: str) -> ClientError:
    """The conversation that a response belongs to is too large; `what` says how, ending the sentence."""
    return ClientError(
        f"The conversation is too large: {what}. Delete some of its items, or start a new one.",
        code="context_length_exceeded",
        param="conversation",
    )


def conversation_not_found(conversation_id: str) -> ClientError:
    """There is no such conversation, or it is another tenant's."""
    return ClientError(f"Conversation with id '{shorten(conversation_id)}' not found.", status=404)


def conversation_locked() -> ClientError:
    """A response is made in the conversation at the moment."""
    return ClientError(
        "Another process is currently operating on this conversation. Please retry in a few seconds.",
        code="conversation_locked",
        param="conversation",
    )


def conversation_lock_lost() -> ServerError:
    """Another response took the conversation over while this server was cut off from its store."""
    return ServerError("The server lost its hold on the conversation while it made this response. Please try again.")


def file_not_found(file_id: str, param: str = "id") -> ClientError:
    """There is no such file, or it is another tenant's, or it has expired; `param` names it."""
    return ClientError(f"No such File object: {shorten(file_id)}", status=404, param=param)


def file_too_large(param: str, limit_bytes: int, setting: str | None = None) -> ClientError:
    """A file has more than `limit_bytes`; `setting` is the operator's name for that limit."""
    name = f" (`{setting}`)" if setting else ""
    message = f"The file is too large: the limit is {limit_bytes} bytes{name}."
    return ClientError(message, status=413 if setting else 400, code="file_too_large", param=param)


def vector_store_not_found(store_id: str, param: str = "vector_store_id") -> ClientError:
    """There is no such vector store, or it is another tenant's; `param` names it."""
    return ClientError(f"Vector store with id '{shorten(store_id)}' not found.", status=404, param=param)


def vector_store_expired(store_id: str, param: str = "vector_store_id") -> ClientError:
    """The vector store has expired, so it has no files any more; `param` names it."""
    return ClientError(
        f"Vector store with id '{shorten(store_id)}' has expired. Create a new one.", code="vector_store_expired", param=param
    )


def wrong_id_prefix(param: str, value: str, prefix: str) -> ClientError:
    """An id is not of the kind that the field takes."""
    return ClientError(
        f"Invalid '{param}': '{shorten(value)}'. Expected an ID that begins with '{prefix}'.", code="invalid_value", param=param
    )


def duplicate_item(item_id: str, param: str) -> ClientError:
    """Two items of one conversation have the same id."""
    return ClientError(
        f"Duplicate item found with id {shorten(item_id)}. Remove duplicate items from your input and try again.", param=param
    )


def invalid_schema(reason: str, subject: str, code: str, param: str) -> ClientError:
    """A schema can't be used; `subject` is for example `function 'look_up'`."""
    return ClientError(f"Invalid schema for {subject}: {reason}.", code=code, param=param)


def prompt_not_found(prompt_id: str, version: str | None = None) -> ClientError:
    """There is no such prompt, or no such version of it, or it is another tenant's."""
    what = f"Prompt with id '{shorten(prompt_id)}'" + (f" and version '{shorten(version)}'" if version else "")
    return ClientError(f"{what} not found.", status=404)


def missing_prompt_variables(names: Iterable[str]) -> ClientError:
    """A prompt has variables that have neither a value nor a default."""
    return ClientError(
        f"Missing prompt variables: {shorten(', '.join(names))}", code="missing_required_parameter", param="prompt.variables"
    )


def unknown_prompt_variables(names: Iterable[str]) -> ClientError:
    """A request has values for variables that its prompt does not have."""
    return ClientError(f"Unknown prompt variables: {shorten(', '.join(names))}", code="unknown_parameter", param="prompt.variables")


def prompt_too_large(limit: str) -> ClientError:
    """A prompt with the values of its variables is larger than `limit`."""
    return ClientError(
        f"The prompt is too large with the values of its variables: the limit is {limit}.",
        code="string_above_max_length",
        param="prompt.variables",
    )


def references_too_large(param: str, limit_bytes: int) -> ClientError:
    """The items that a request refers to by id come to more than `limit_bytes`; `param` is what refers to them."""
    return ClientError(
        f"The items that the input refers to are too large: the limit is {limit_bytes >> 20} MiB in all.",
        code="context_length_exceeded",
        param=param,
    )


def unknown_cursor(kind: str, after: str | None) -> ClientError:
    """The page of a list is to begin after what is not in the list; `kind` says what it lists, as "Item"."""
    return ClientError(f"{kind} with id '{shorten(after)}' not found.", param="after", code="invalid_value")


def innermost_error(error: Exception) -> Exception:
    """The first error in a group, at any depth; an error that is no group itself."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
