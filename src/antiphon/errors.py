"""
Faults, split by whose they are: the client's, the upstream's, ours.

A fault carries what the wire needs (status, type, code, message, param); each protocol renders it in its own shape. Texts follow
the original API, so that a user who searches for one finds help.
"""

from collections.abc import Iterable
from math import isnan
from typing import Any, Literal

LONGEST_RETRY_S = 86_400 * 365
"""Beyond that nobody tries again."""


class Fault(Exception):
    """
    Something that ends a request, with what the client is told.

    A worker or an upstream may have said what is in it, and may lie: a status that is no error's is left out, and so are seconds that no
    header can say.

    Attributes:
        message: for a person; names what was expected and what came.
        code: the wire's machine-readable code, or None.
        param: path of the offending field, such as `input[0].content[1].type`, or None.
        status: the HTTP status.
        type: the wire's error family.
        retry_after_s: seconds after which trying again may help, or None.
    """

    status = 500
    type = "server_error"

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
        self.code = code
        self.param = param
        self.status = status if status is not None and 400 <= status < 600 else self.status
        self.type = type or self.type
        self.retry_after_s = None if retry_after_s is None or isnan(retry_after_s) else min(max(retry_after_s, 0), LONGEST_RETRY_S)

    def body(self) -> dict[str, Any]:
        """The error object of the OpenAI HTTP APIs: `{"error": {message, type, param, code}}`."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class ClientMistake(Fault):
    """The request can't be served as it stands; nothing was done."""

    status = 400
    type = "invalid_request_error"


class UpstreamTrouble(Fault):
    """The engine, or the server behind it, failed, refused or fell silent."""

    status = 502
    type = "server_error"


class OurFault(Fault):
    """A defect or a limit of this server."""


def listed(values: Iterable[str], last: str = "and") -> str:
    """Values quoted and joined as the original's messages do: `'a', 'b', and 'c'`."""
    quoted = [f"'{value}'" for value in values]
    if len(quoted) < 3:
        return f" {last} ".join(quoted)
    return f"{', '.join(quoted[:-1])}, {last} {quoted[-1]}"


def shown(value: object, most: int = 100) -> str:
    """A client's value for a message, cut short where it is long."""
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}…"


def unparsable_json(reason: str) -> ClientMistake:
    """The body is not JSON; `reason` says where."""
    return ClientMistake(
        "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library correctly. "
        f"This API expects a JSON payload, but what was sent was not valid JSON: {reason}.)"
    )


def nested_too_deep(limit: int) -> ClientMistake:
    """Objects and arrays in the body stand within more than `limit` others."""
    return ClientMistake(f"We could not parse the JSON body of your request: it is nested more than {limit} levels deep.")


def missing_parameter(param: str) -> ClientMistake:
    """A required field is absent."""
    return ClientMistake(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)


def mutually_exclusive(param: str, names: Iterable[str]) -> ClientMistake:
    """At most one of the fields `names` may be given; `param` is the one to leave out."""
    names = tuple(names)
    return ClientMistake(
        f"Mutually exclusive parameters: {listed(names)}. Ensure you are only providing one of: {listed(names, 'or')}.",
        code="mutually_exclusive_parameters",
        param=param,
    )


def invalid_value(param: str | None, got: object, supported: Iterable[str]) -> ClientMistake:
    """A field's value is none of those allowed."""
    return ClientMistake(f"Invalid value: '{shown(got)}'. Supported values are: {listed(supported)}.", code="invalid_value", param=param)


def invalid_type(param: str | None, expected: str, got: str) -> ClientMistake:
    """A field, or with no `param` the whole body, has the wrong JSON type; `expected` and `got` come with their article."""
    place = f" for '{param}'" if param else ""
    return ClientMistake(f"Invalid type{place}: expected {expected}, but got {got} instead.", code="invalid_type", param=param)


def below_minimum(param: str, kind: Literal["integer", "decimal"], least: float, got: object) -> ClientMistake:
    """A number is too small."""
    return ClientMistake(
        f"Invalid '{param}': {kind} below minimum value. Expected a value >= {least}, but got {shown(got)} instead.",
        code=f"{kind}_below_min_value",
        param=param,
    )


def above_maximum(param: str, kind: Literal["integer", "decimal"], most: float, got: object) -> ClientMistake:
    """A number is too large."""
    return ClientMistake(
        f"Invalid '{param}': {kind} above maximum value. Expected a value <= {most}, but got {shown(got)} instead.",
        code=f"{kind}_above_max_value",
        param=param,
    )


def too_short(param: str, kind: Literal["string", "array"], least: int, got: int) -> ClientMistake:
    """A string or an array is shorter than `least`."""
    article = "a" if kind == "string" else "an"
    flaw, code = (f"{kind} too short", f"{kind}_below_min_length") if got else (f"empty {kind}", f"empty_{kind}")
    came = f"{article} {kind} with length {got}" if got else f"an empty {kind}"
    return ClientMistake(
        f"Invalid '{param}': {flaw}. Expected {article} {kind} with minimum length {least}, but got {came} instead.", code=code, param=param
    )


def too_long(param: str, kind: Literal["string", "array"], most: int, got: int) -> ClientMistake:
    """A string or an array is longer than `most`."""
    article = "a" if kind == "string" else "an"
    return ClientMistake(
        f"Invalid '{param}': {kind} too long. "
        f"Expected {article} {kind} with maximum length {most}, but got {article} {kind} with length {got} instead.",
        code=f"{kind}_above_max_length",
        param=param,
    )


def too_many_properties(param: str, most: int, got: int) -> ClientMistake:
    """An object has more than `most` properties."""
    return ClientMistake(
        f"Invalid '{param}': too many properties. "
        f"Expected an object with at most {most} properties, but got an object with {got} properties instead.",
        code="object_above_max_properties",
        param=param,
    )


def property_name_too_long(param: str, name: str, most: int) -> ClientMistake:
    """An object has a property whose name is longer than `most`."""
    return ClientMistake(
        f"Invalid property name in '{param}': '{shown(name)}' is too long. "
        f"Expected a string with maximum length {most}, but got a string with length {len(name)} instead.",
        code="property_name_above_max_length",
        param=f"{param}.{shown(name)}",
    )


def pattern_mismatch(param: str, pattern: str) -> ClientMistake:
    """A string is not of the required form."""
    return ClientMistake(
        f"Invalid '{param}': string does not match pattern. Expected a string that matches the pattern '{pattern}'.",
        code="invalid_value",
        param=param,
    )


def invalid_base64(param: str) -> ClientMistake:
    """A string is not whole, padded base64."""
    return ClientMistake(
        f"Invalid '{param}'. Expected base64-encoded audio bytes but got invalid bytes.", code="invalid_value", param=param
    )


def invalid_json(reason: str) -> ClientMistake:
    """A message is not JSON; `reason` says where."""
    return ClientMistake(f"Invalid JSON: {reason}.", code="invalid_json")


def invalid_event(message: str) -> ClientMistake:
    """A message is JSON, but no event."""
    return ClientMistake(message, code="invalid_event")


def invalid_modalities(param: str, got: Iterable[str], supported: Iterable[Iterable[str]]) -> ClientMistake:
    """A combination of modalities that can't be had."""
    combinations = " and ".join(str(list(each)) for each in supported)
    return ClientMistake(f"Invalid modalities: {list(got)}. Supported combinations are: {combinations}.", code="invalid_value", param=param)


def unsupported_parameter(param: str, model: str) -> ClientMistake:
    """The field asks for what this model's engine can't do."""
    return ClientMistake(
        f"Unsupported parameter: '{param}' is not supported with the '{model}' model.", code="unsupported_parameter", param=param
    )


def unsupported_value(param: str, got: object, model: str, supported: Iterable[str]) -> ClientMistake:
    """The field is known, but this model's engine serves only other values of it."""
    return ClientMistake(
        f"Unsupported value: '{got}' is not supported with the '{model}' model. Supported values are: {listed(supported)}.",
        code="unsupported_value",
        param=param,
    )


def model_not_found(name: str, known: Iterable[str]) -> ClientMistake:
    """No configured model answers to that name."""
    have = listed(known)
    hint = f" This server has {have}." if have else " This server has no models configured."
    return ClientMistake(
        f"The model `{shown(name)}` does not exist or you do not have access to it.{hint}",
        code="model_not_found",
        param="model",
        status=404,
    )


def response_not_found(response_id: str) -> ClientMistake:
    """No such response, or not this tenant's."""
    return ClientMistake(f"Response with id '{shown(response_id)}' not found.", status=404)


def previous_response_not_found(response_id: str) -> ClientMistake:
    """`previous_response_id` names nothing that is stored."""
    return ClientMistake(
        f"Previous response with id '{shown(response_id)}' not found.", code="previous_response_not_found", param="previous_response_id"
    )


def context_length_exceeded(window: int, asked: int) -> ClientMistake:
    """The input, in tokens, does not fit the model's context window and `truncation` forbids dropping any."""
    return ClientMistake(
        "Your input exceeds the context window of this model. Please adjust your input and try again. "
        f"(This model's maximum context length is {window} tokens; your input is {asked} tokens.)",
        code="context_length_exceeded",
        param="input",
    )
