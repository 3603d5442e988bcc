"""
Rules of this API for schemathesis that no schema can express. It loads this file by the environment variable `SCHEMATHESIS_HOOKS`.

Its own check `positive_data_acceptance` requires that every request that the schemas allow is served. Here a refusal is allowed too, if its
reason is not the request's form: the model can't do it, an id is unknown, items don't belong together.
"""

import json
import re

import schemathesis

FILE_REASONS = [
    (code, f"{items}[].{field}[]", name)
    for items in ("input", "items", "instructions")
    for field in ("content", "output")
    for code, name in (("invalid_value", "file_id"), ("invalid_value", "file_data"), ("missing_required_parameter", "file_id"))
]
"""Unknown ids, data that is not base64, and invalid files."""

CHAT_REASONS = [
    (None, "messages"),  # calls without an answer
    (None, "messages[].role"),  # an answer without its call
    ("missing_required_parameter", "messages[].name"),
    ("invalid_value", "messages[].content[].type"),  # of another role
    ("unsupported_parameter", "messages[].audio"),
    ("invalid_value", "messages[].content[].file.file_id"),
    ("invalid_value", "messages[].content[].file.file_data"),
    ("missing_required_parameter", "messages[].content[].file.file_id"),
    ("invalid_parameter_combination", "max_tokens"),
    ("missing_required_parameter", "audio"),
    ("integer_above_max_value", "n"),  # what one request may have at once
    ("invalid_value", "n"),  # spoken
    ("invalid_value", "function_call"),
    (None, "functions"),
    (None, "function_call"),
    (None, "top_logprobs"),
    ("empty_array", "tool_choice.allowed_tools.tools"),
    ("invalid_value", "tools[]"),  # of another one's name
    ("invalid_value", "functions[]"),
    ("invalid_value", "tools[].custom.format.grammar.definition"),  # no regular expression
]
"""Fields that exclude or need each other, and messages that don't belong together."""

VECTOR_STORE_REASONS = [
    ("missing_required_parameter", "file_ids"),  # nor `files`
    ("invalid_value", "files"),  # and `file_ids`
    ("invalid_value", "name"),  # with a NUL, which not every store can hold
    ("invalid_value", "description"),
    ("invalid_value", "before"),
    ("invalid_value", "chunking_strategy.static.chunk_overlap_tokens"),  # more than half of a chunk
    ("invalid_value", "files[].chunking_strategy.static.chunk_overlap_tokens"),
    ("invalid_value", "ranking_options.hybrid_search"),  # nothing has any weight
]
"""Fields that need or exclude each other."""

OPERATOR_REASONS = [
    ("invalid_value", "start"),  # after the end
    ("invalid_value", "page"),
    ("invalid_value", "group_by"),
    ("invalid_value", "topics"),
    ("invalid_value", "tenant"),  # on several lines
    ("invalid_value", "scopes"),  # none
    ("invalid_value", "scopes[]"),
    ("invalid_value", "expires"),
]
"""What is written in a string, and must be a list or a date."""

TOOL_REASONS = [
    (code, f"{path}.{name}")
    for path in ("tools[]", "session.tools[]", "input[].tools[]")
    for code, name in (
        ("missing_required_parameter", "server_url"),  # and no server of the operator's has the label
        ("invalid_value", "server_url"),
        ("invalid_value", "server_label"),  # another server's
        ("empty_array", "vector_store_ids"),
    )
]
"""Tools that name nothing to use."""

REASONS = {
    *CHAT_REASONS,
    *TOOL_REASONS,
    *VECTOR_STORE_REASONS,
    *OPERATOR_REASONS,
    ("context_length_exceeded", "input"),
    ("invalid_encrypted_content", "input[].encrypted_content"),  # from another server
    ("invalid_value", "after"),
    ("invalid_value", "audio_base"),  # no audio file
    ("invalid_value", "conversation"),
    ("invalid_value", "expires_after.minutes"),  # more than the server gives
    ("invalid_value", "file_id"),
    ("invalid_value", "file_ids[]"),
    ("invalid_value", "file"),  # empty
    ("missing_required_parameter", "file"),  # nor `file_id`
    ("invalid_value", "input[].output.file_id"),  # an unknown screenshot
    ("container_expired", None),
    *((code, f"{path}.{name}") for code, path, name in FILE_REASONS),
    ("invalid_value", "input[].type"),  # of which nobody knows, where that is all
    ("invalid_value", "items[].id"),
    ("invalid_value", "items[].type"),  # which no model would read
    ("invalid_value", "items[].tools[].type"),
    ("invalid_value", "items[].tools[].tools[].type"),
    ("string_above_max_length", "input[].id"),  # in a conversation
    ("string_above_max_length", "items[].id"),
    ("invalid_value", "input[].id"),  # with a NUL, which not every store can hold
    ("invalid_value", "modalities"),  # that can't be combined
    ("invalid_value", "prompt.id"),
    ("invalid_value", "session.output_modalities"),
    ("invalid_value", "tool_choice"),
    ("empty_array", "tool_choice.tools"),
    ("invalid_value", "tools[].format.definition"),  # no regular expression
    ("invalid_value", "tools[].name"),  # another one's
    ("missing_required_parameter", "input"),  # without anything for the model
    ("mutually_exclusive_parameters", "file_id"),  # and `file`
    ("mutually_exclusive_parameters", "previous_response_id"),
    ("mutually_exclusive_parameters", "reasoning.generate_summary"),
    ("previous_response_not_found", "previous_response_id"),
    ("unsupported_model", "model"),
    (None, "input"),  # calls and their outputs
    (None, "items"),  # two with one id
    (None, "audio"),  # without `stream`
    (None, "background"),  # with `store: false`
    (None, "modalities"),
    (None, "stream"),  # of a response that was not a background stream
    (None, "stream_options"),
}
"""Error codes with their parameters."""

ALWAYS_GOOD = {
    "unsupported_parameter",  # the model can't do it
    "unsupported_value",
    "invalid_function_parameters",  # no JSON Schema
    "invalid_json_schema",
    "invalid_url",  # of media, by which none can be given; the original announces no pattern either
}
"""Error codes that are a reason whatever their parameter is."""


@schemathesis.check
def good_reason(ctx, response, case):
    """A request that the schemas allow is served, or refused for a reason other than its form."""
    is_valid = case.meta is not None and case.meta.generation.mode.is_positive
    if is_valid and response.status_code == 400 and "200" in case.operation.definition.raw["responses"]:
        error = json.loads(response.content)["error"]
        if "code" not in error:  # Anthropic's errors have no codes: `tests/server/messages` looks at their words
            return
        if (error["param"] or "").startswith("filters"):  # `tests/tools/file_search/test_filters.py` looks at these
            return
        reason = error["code"], re.sub(r"\d+", "", error["param"] or "") or None
        assert reason in REASONS or error["code"] in ALWAYS_GOOD, f"{reason}: {error['message']}"


@schemathesis.hook
def filter_case(_context, case):
    """
    Leave out forms whose only mistake is the type of a file: in a form everything is bytes. Leave out unknown types of tools and of a
    search's sources too: they are no mistakes, and are taken.
    """
    if case.method != "POST" or not isinstance(case.body, dict):
        return True
    if case.path in ("/v1/files", "/v1/containers/{container_id}/files") and "file" in case.body:
        return isinstance(case.body.get("file", ""), (str, bytes))
    is_negative = case.meta is not None and case.meta.generation.mode.is_negative
    schemas = case.operation.schema.raw_schema["components"]["schemas"]
    known = {name: schemas[union]["discriminator"]["mapping"] for name, union in (("tools", "Tool"), ("sources", "SearchSource"))}
    return not (is_negative and has_unknown_type(case.body, known))


def has_unknown_type(value, known):
    """Whether a request has an object, in a list with one of these names, of a type that the schemas don't list, as they allow."""
    if isinstance(value, list):
        return any(has_unknown_type(each, known) for each in value)
    if not isinstance(value, dict):
        return False
    for name, types in known.items():
        objects = value.get(name)
        for each in objects if isinstance(objects, list) else ():
            if isinstance(each, dict) and isinstance(kind := each.get("type"), str) and kind not in types:
                return True
    return has_unknown_type([*value.values()], known)
