"""Whether what a client calls a JSON Schema, or a regular expression, is one."""

from antiphon.errors import ClientError, invalid_schema, shorten
from antiphon.wire.codec.types import JsonDict

MAX_PROBLEM_CHARS = 300

_DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def check_output_schema(name: str, schema: JsonDict, param: str) -> None:
    """
    Check that the schema of an answer is a JSON Schema.

    Raises:
        ClientError: it is none.
    """
    if (problem := schema_problem(schema)) is not None:
        raise invalid_schema(shorten(problem, MAX_PROBLEM_CHARS), f"response_format '{shorten(name)}'", "invalid_json_schema", param)


def check_parameters_schema(function_name: str, schema: JsonDict, param: str) -> None:
    """
    Check that the schema of a strict function's arguments is a JSON Schema; others are a hint to the model, which may be anything.

    Raises:
        ClientError: it is none.
    """
    if (problem := schema_problem(schema)) is not None:
        subject = f"function '{shorten(function_name)}'"
        raise invalid_schema(shorten(problem, MAX_PROBLEM_CHARS), subject, "invalid_function_parameters", param)


def check_regex(pattern: str, param: str) -> None:
    """
    Check that a custom tool's regular expression is one.

    Raises:
        ClientError: it is none.
    """
    if not is_regex(pattern):
        raise ClientError(f"Invalid '{param}': '{shorten(pattern)}' is no regular expression.", code="invalid_value", param=param)


def schema_problem(schema: JsonDict) -> str | None:
    """Why an object is no JSON Schema, of the draft that it names or of any; None if it is one."""
    import jsonschema_rs  # noqa: PLC0415 - loads in 50 ms, and few requests have schemas to check

    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        # Draft 4 is that of OpenAPI 3.0, from which many clients make their tools.
        if "$schema" not in schema and jsonschema_rs.meta.is_valid({**schema, "$schema": _DRAFT_4}):
            return None
        path = "".join(f"/{step}" for step in error.instance_path)
        return f"in {path or '/'}, {error.message}"
    except (jsonschema_rs.ReferencingError, ValueError):  # of a draft that nobody here knows
        return None
    return None


def is_regex(pattern: str) -> bool:
    """Whether a text is a regular expression, of Rust's syntax or with lookaround."""
    import jsonschema_rs  # noqa: PLC0415 - as above

    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=jsonschema_rs.FancyRegexOptions())
    except jsonschema_rs.ValidationError:
        return False
    return True
