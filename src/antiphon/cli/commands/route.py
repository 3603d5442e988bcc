"""`antiphon route`."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from antiphon.cli.common import checks, lazy, settings, weights
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.config.load import Config
from antiphon.engine_api.capabilities import Capabilities
from antiphon.errors import ClientError, is_or_are
from antiphon.runtime.speech import service as speech

if TYPE_CHECKING:
    from antiphon.runtime.registry import ServedModel
    from antiphon.runtime.routing.features import RouteFeatures
    from antiphon.runtime.routing.router import Explanation, Router, RuleTrial
    from antiphon.wire.responses.request import CreateRequest

_BEST_SCORES = 3

# A worker says what it can do when it joins; until then nothing speaks against its model.
_UNKNOWN = Capabilities(
    images=True,
    files=True,
    audio_in=True,
    tools=True,
    custom_tools=True,
    json_object=True,
    json_schema=True,
    max_top_logprobs=20,
    listens=True,
)


def route(
    text: str | None = None,
    /,
    *,
    request: Annotated[Path | None, Parameter(name="--file")] = None,
    name: str | None = None,
    key: str = "",
    as_json: JsonFlag = False,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    See which model a request would get, and why.

    It decides as a server with this configuration would, as far as that tells
    what the models can do, and sends nothing to them.

    Try:
        antiphon route "Prove that there are infinitely many primes."
        antiphon route --file request.json --json

    Args:
        text: what the user says.
        request: a request of the Responses API, as JSON, instead of a text.
        name: the route; by default the one that the request names, or the first.
        key: the API key of the request, by its id or its name, as the rules have it.
    """
    config = settings.load(shell, file).config
    checks.raise_usage_error(checks.route_problems(config))
    if not config.routing:
        raise UsageError("No route is configured; `[routing]` makes one.")
    create_request = _read_request(shell, text, request)
    names = [entry.name for entry in config.routing]
    route_name = name or create_request.model or names[0]
    if route_name not in names:
        raise UsageError(_unknown_route(str(route_name), names, is_requested=name is None))
    weights.fetch_embedding_model(config, shell)
    explanation = asyncio.run(_explain(config, shell, str(route_name), create_request, key))
    if as_json:
        return shell.say_json(_to_dict(explanation))
    for part in (_request_rows, _model_rows, _rule_rows, _score_rows):
        if rows := part(explanation):
            shell.say_rows(rows)
            shell.say()
    return shell.say(_sentence(explanation))


def _unknown_route(name: str, names: Sequence[str], *, is_requested: bool) -> str:
    there_are = f"there {is_or_are(names)}"
    if is_requested:
        return f"The request names the model '{name}', which is no route, so none is chosen. To try one, give its --name; {there_are}."
    return f"There is no route '{name}'; {there_are}."


def _read_request(shell: Shell, text: str | None, path: Path | None) -> "CreateRequest":
    if (text is None) == (path is None):
        raise UsageError("`antiphon route` needs either a text or --file.")
    if path is None:
        return lazy.request.CreateRequest(input=text or "")
    try:
        content = (shell.cwd / path).read_bytes()
        json.loads(content)  # its reason has the line; the server's is for HTTP clients
        return lazy.request.decode_request(content)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}.") from None
    except ClientError as error:
        raise UsageError(f"{path}: {error.message}") from None


async def _explain(config: Config, shell: Shell, name: str, create_request: "CreateRequest", key: str) -> "Explanation":
    lazy.service.check_references(config)
    metrics = lazy.metrics.Metrics()
    registry = lazy.registry.ModelRegistry(config.models, config.models_dir, 0, shell.note, config.secrets)
    transcribes = speech.missing_reason(config.speech, config.models_dir) is None

    def can_do(model: "ServedModel", features: "RouteFeatures") -> Capabilities | None:
        return lazy.service.route_capabilities(model, features, transcribes=transcribes) or _UNKNOWN

    router: Router[ServedModel] = lazy.service.build_router(config, registry, metrics, shell.note, can_do)
    history = lazy.resolve_request.KnownHistory((), 0)
    may_omit_tools = config.responses.unavailable_tools == "carry"
    features = lazy.routing.request_features(create_request, history, may_omit_tools=may_omit_tools)
    try:
        await router.start()
        return await router.explain(name, features, lazy.features.RouteCaller(key_id=key, key_name=key))
    finally:
        await router.stop()
        await registry.stop()


def _request_rows(explanation: "Explanation") -> list[tuple[str, ...]]:
    features = explanation.features
    has = [
        what
        for what, is_there in (("tools", features.has_tools), ("images", features.has_images), ("audio", features.has_audio))
        if is_there
    ]
    tokens = f"about {features.input_tokens} token{'' if features.input_tokens == 1 else 's'}"
    facts = f"{tokens}, language {explanation.language or 'unclear'}, {' and '.join(has) or 'text only'}"
    return [("ROUTE", "REQUEST"), (explanation.route.name, facts)]


def _model_rows(explanation: "Explanation") -> list[tuple[str, ...]]:
    default = explanation.route.default
    return [
        ("MODEL", "CAN ANSWER"),
        *(
            (f"{model} (default)" if model == default else model, "yes" if problem is None else f"no: {problem}")
            for model, problem in explanation.problems.items()
        ),
    ]


def _rule_rows(explanation: "Explanation") -> list[tuple[str, ...]]:
    rows = [(str(trial.number), trial.model, trial.category, _describe_trial(trial)) for trial in explanation.trials]
    return [("RULE", "MODEL", "CATEGORY", "FITS"), *rows] if rows else []


def _describe_trial(trial: "RuleTrial") -> str:
    marks = [f"{'✓' if each.holds else '✗'} {each.key} {each.expected} (is {each.seen})" for each in trial.observations]
    return "; ".join([*marks, *([f"✗ the model {trial.problem}"] if trial.problem else ())]) or "✓ always"


def _score_rows(explanation: "Explanation") -> list[tuple[str, ...]]:
    if explanation.classifier_problem:
        return [("CATEGORY", "SCORE"), ("-", explanation.classifier_problem)]
    rows = [(category, f"{score:.2f}") for category, score in explanation.scores[:_BEST_SCORES]]
    return [("CATEGORY", "SCORE"), *rows] if rows else []


_SOURCES: dict[str, Callable[[int | None], str]] = {
    "rule": lambda number: f"rule {number}",
    "classifier": lambda _number: "the classifier",
    "default": lambda _number: "default",
    "conversation": lambda _number: "the conversation",
}


def _sentence(explanation: "Explanation") -> str:
    choice = explanation.choice
    by = _SOURCES[choice.source](choice.rule)
    return f"{choice.model}, category {choice.category}, by {by}: {choice.reason} ({explanation.ms:.1f} ms)"


def _to_dict(explanation: "Explanation") -> dict[str, object]:
    choice, features = explanation.choice, explanation.features
    return {
        "route": explanation.route.name,
        "model": choice.model,
        "category": choice.category,
        "source": choice.source,
        "rule": choice.rule,
        "reason": choice.reason,
        "ms": round(explanation.ms, 1),
        "request": {
            "input_tokens": features.input_tokens,
            "language": explanation.language,
            "has_tools": features.has_tools,
            "has_images": features.has_images,
            "has_audio": features.has_audio,
        },
        "models": [{"name": model, "problem": problem} for model, problem in explanation.problems.items()],
        "rules": [_trial_to_dict(trial) for trial in explanation.trials],
        "scores": [{"category": category, "score": round(score, 4)} for category, score in explanation.scores],
        "classifier_problem": explanation.classifier_problem,
    }


def _trial_to_dict(trial: "RuleTrial") -> dict[str, object]:
    conditions: Sequence[dict[str, object]] = [
        {"key": each.key, "expected": each.expected, "seen": each.seen, "holds": each.holds} for each in trial.observations
    ]
    fits = trial.problem is None and all(each.holds for each in trial.observations)
    return {
        "number": trial.number,
        "model": trial.model,
        "category": trial.category,
        "fits": fits,
        "problem": trial.problem,
        "conditions": conditions,
    }
