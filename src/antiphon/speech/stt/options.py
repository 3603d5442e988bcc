"""What all ears refuse alike: a wish that would change nothing is refused by the name of its field."""

from collections.abc import Collection

from antiphon.engine_api.options import Transcription
from antiphon.errors import unsupported_parameter, unsupported_value


def check_options(
    options: Transcription, model: str, *, languages: Collection[str] = (), takes_prompt: bool = False, has_word_times: bool = False
) -> None:
    """
    Refuse what can't be done.

    Args:
        model: the name of what can't.
        languages: that it understands; empty for any.

    Raises:
        ClientError: it is wished.
    """
    for language in options.languages:
        if languages and primary_subtag(language) not in languages:
            raise unsupported_value("language", language, model, languages)
    refused = {
        "prompt": bool(options.prompt) and not takes_prompt,
        "keywords": bool(options.keywords) and not takes_prompt,
        "logprobs": options.logprobs,
        "timestamp_granularities": options.word_times and not has_word_times,
    }
    for param, is_refused in refused.items():
        if is_refused:
            raise unsupported_parameter(param, model)


def primary_subtag(language: str) -> str:
    """The code of a language without its region: `en` of `en-GB`."""
    return language.replace("_", "-").partition("-")[0].lower()
