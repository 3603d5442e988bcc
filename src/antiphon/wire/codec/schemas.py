"""Whether what a client calls a JSON Schema, or a regular expression, is one."""

from antiphon.wire.codec.types import JsonDict

_DRAFT_4 = "http://json-schema.org/draft-04/schema#"


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
