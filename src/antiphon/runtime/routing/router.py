"""
Chooses the model of a request that names a route: what its conversation has had before, then rules, then examples, then
the default.
"""

import asyncio
import contextlib
import hashlib
import importlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeVar

import structlog
from msgspec import Struct

from antiphon.config.routing import EMBEDDING_MODEL, RouteEntry
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.routing import RouteDecision
from antiphon.errors import ApiError, ClientError, ServerError
from antiphon.installation import install_hint, missing_modules
from antiphon.offload import offload
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.language import detect_language
from antiphon.runtime.routing.features import RouteCaller, RouteFacts, RouteFeatures, classified_text, missing_ability
from antiphon.runtime.routing.rules import CompiledRule, Observation

if TYPE_CHECKING:
    from antiphon.runtime.routing.classifier import ExampleClassifier, Score, TextEmbedder, TextVectors

ROUTE_HEADER = "antiphon-route"
MAX_HEADER_BYTES = 256

STICK_S = 3600.0
"""How long a conversation without a turn keeps its model."""

MAX_STICKY_CONVERSATIONS = 10_000

PATIENT_S = 10.0
"""How long an explanation may take."""

Source = Literal["conversation", "rule", "classifier", "default"]


class NamedModel(Protocol):
    """A model that requests can be given to."""

    @property
    def name(self) -> str:
        """What clients call it."""


ModelT = TypeVar("ModelT", bound=NamedModel)
ModelT_co = TypeVar("ModelT_co", bound=NamedModel, covariant=True)


class Models(Protocol[ModelT_co]):
    """All models, by name."""

    def find(self, name: str | None) -> ModelT_co:
        """The model of that name; raises `ClientError` if there is none."""

    def has(self, name: str) -> bool:
        """Whether there is one."""


Abilities = Callable[[ModelT, RouteFeatures], Capabilities | None]
"""What a model can do for such a request; None while it has no worker."""


class Resolution(Struct, Generic[ModelT], frozen=True):
    """
    The model that answers a request.

    Attributes:
        decision: why; None where the client named the model.
        headers: tell the client.
    """

    model: ModelT
    decision: RouteDecision | None = None
    headers: Mapping[str, str] = {}


class ModelChoice(NamedTuple):
    """
    A model, and why it was chosen.

    Attributes:
        rule: the number of the rule that decided, from 1.
    """

    model: str
    category: str
    source: Source
    reason: str
    rule: int | None = None


class RuleTrial(NamedTuple):
    """
    A rule held against a request.

    Attributes:
        problem: why its model can't answer; None if it can.
    """

    number: int
    model: str
    category: str
    observations: tuple[Observation, ...]
    problem: str | None


class Explanation(NamedTuple):
    """
    A decision with all that led to it.

    Attributes:
        problems: for each model of the route, why it can't answer, or None.
        scores: of the categories, the best first; empty where nothing was classified.
        classifier_problem: why nothing was classified, where there are examples.
        ms: how long the decision took, without the other parts of this.
    """

    route: RouteEntry
    features: RouteFeatures
    language: str | None
    problems: Mapping[str, str | None]
    trials: Sequence[RuleTrial]
    scores: Sequence[tuple[str, float]]
    classifier_problem: str | None
    choice: ModelChoice
    ms: float


class _Verdict(NamedTuple):
    """What the classifier says of a request."""

    scores: "Sequence[Score]" = ()
    best: "Score | None" = None
    problem: str | None = None


class Route:
    """One configured name, ready to decide."""

    def __init__(self, entry: RouteEntry) -> None:
        self.entry = entry
        self.rules = tuple(CompiledRule(number, rule) for number, rule in enumerate(entry.rules, start=1))
        self.model_by_category = entry.model_by_category
        self.classifier: ExampleClassifier | None = None
        self.languages = example_languages(text for examples in entry.examples for text in examples.texts)
        models = (entry.default, *(rule.model for rule in entry.rules), *self.model_by_category.values())
        self.models = tuple(dict.fromkeys(models))


def example_languages(texts: Iterable[str]) -> frozenset[str]:
    """
    The languages of examples. Texts in others are not compared with them: to a model that was trained on English, all
    that is foreign is alike.
    """
    return frozenset(language for text in texts if (language := detect_language(text)) is not None)


class StickyModels:
    """
    Which model a conversation was given to, for as long as it goes on.

    Args:
        clock: seconds from any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._choices: OrderedDict[bytes, tuple[float, str, str]] = OrderedDict()

    def find(self, route: str, tenant: str, names: Sequence[str]) -> tuple[str, str] | None:
        """The model and the category of the conversation with one of these names, the surest first."""
        for name in names:
            key = _sticky_key(route, tenant, name)
            entry = self._choices.get(key)
            # One that is too old stays until others push it out: the table is bounded.
            if entry is not None and self._clock() - entry[0] < STICK_S:
                return entry[1:]
        return None

    def remember(self, route: str, tenant: str, names: Sequence[str], model: str, category: str) -> None:
        """Keep the conversation with these names at its model."""
        for name in names:
            key = _sticky_key(route, tenant, name)
            self._choices[key] = (self._clock(), model, category)
            self._choices.move_to_end(key)
            if len(self._choices) > MAX_STICKY_CONVERSATIONS:
                self._choices.popitem(last=False)


def _sticky_key(route: str, tenant: str, name: str) -> bytes:
    # The tenant is part of it: the chosen model must not show what another tenant talks about.
    return hashlib.sha256("\0".join((route, tenant, name)).encode("utf-8", "surrogatepass")).digest()


class Router(Generic[ModelT]):
    """
    All routes of a server.

    Args:
        abilities: what a model can do for a request.
        weights: the folder of verified model files.
        vectors_file: keeps the vectors of examples.
        notice: takes a line for the operator.
        new_embedder: makes vectors of texts; None for the model of the catalogue.
        now: the time in the server's zone.
    """

    def __init__(
        self,
        entries: Sequence[RouteEntry],
        models: Models[ModelT],
        abilities: Abilities[ModelT],
        metrics: Metrics,
        weights: Path,
        vectors_file: Path,
        notice: Callable[[str], None] = lambda _line: None,
        new_embedder: "Callable[[], TextEmbedder] | None" = None,
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        self._routes: Mapping[str, Route] = {entry.name: Route(entry) for entry in entries}
        self._models = models
        self._abilities = abilities
        self._metrics = metrics
        self._weights = weights
        self._vectors_file = vectors_file
        self._notice = notice
        self._new_embedder = new_embedder
        self._now = now
        self._sticky = StickyModels()
        self._vectors: TextVectors | None = None

    @property
    def names(self) -> Sequence[str]:
        """The names of the routes, in the order configured."""
        return tuple(self._routes)

    def has(self, name: str | None) -> bool:
        """Whether a request with that name is routed."""
        return name in self._routes

    async def start(self) -> None:
        """
        Load what routes with examples need, and make the examples' vectors, or read them.

        Raises:
            ServerError: the embedding model is not there, or numpy is not installed.
        """
        await self._classify_by_examples(self._routes)

    async def prepare(self, entries: Sequence[RouteEntry]) -> Mapping[str, Route]:
        """
        Routes that are ready to decide, by name; one that is configured as before is the same.

        Raises:
            ServerError: as `start`.
        """
        # A route that is configured as before keeps its classifier, as examples take long to learn.
        same = {name: route for name, route in self._routes.items() if route.entry in entries}
        new = {entry.name: Route(entry) for entry in entries if entry.name not in same}
        routes = {entry.name: same.get(entry.name) or new[entry.name] for entry in entries}
        await self._classify_by_examples(routes)
        return routes

    def configure(self, routes: Mapping[str, Route]) -> None:
        """Decide by these routes from now on. Conversations keep their models where a route still has them."""
        self._routes = routes

    async def _classify_by_examples(self, all_routes: Mapping[str, Route]) -> None:
        routes = [route for route in all_routes.values() if route.entry.examples]
        if not routes or (self._vectors is not None and all(route.classifier is not None for route in routes)):
            return
        if missing_modules(("numpy",)):
            raise ServerError(f"`routing.examples` needs numpy, which is not installed. {install_hint('embeddings')}")
        # In threads, as a server that runs goes on meanwhile: numpy takes 100 ms to load, and many examples take as long to learn.
        classifier = await asyncio.to_thread(importlib.import_module, "antiphon.runtime.routing.classifier")
        vectors = await self._start_vectors(classifier)
        texts = [classified_text(text) for route in routes for entry in route.entry.examples for text in entry.texts]
        vector_by_text = await vectors.of_examples(texts)
        for route in (route for route in routes if route.classifier is None):
            by_category: dict[str, list[str]] = {}
            for entry in route.entry.examples:
                by_category.setdefault(entry.category, []).extend(classified_text(text) for text in entry.texts)
            vectors_by_category = {
                category: classifier.stack([vector_by_text[text] for text in each]) for category, each in by_category.items()
            }
            route.classifier = await asyncio.to_thread(
                classifier.ExampleClassifier, vectors_by_category, route.entry.threshold, route.entry.margin
            )

    async def _start_vectors(self, classifier: ModuleType) -> "TextVectors":
        if self._vectors is None:
            embedder = self._new_embedder() if self._new_embedder else classifier.new_embedder(self._weights / EMBEDDING_MODEL)
            vectors: TextVectors = classifier.TextVectors(embedder, self._vectors_file, self._notice)
            try:
                await vectors.start()
            except BaseException:
                await vectors.stop()
                raise
            self._vectors = vectors
        return self._vectors

    async def stop(self) -> None:
        """Stop the classifier; idempotent."""
        vectors, self._vectors = self._vectors, None
        if vectors is not None:
            await vectors.stop()

    async def resolve(
        self, name: str | None, features: Callable[[], RouteFeatures], caller: RouteCaller, size_bytes: int = 0
    ) -> Resolution[ModelT]:
        """
        The model of a request.

        Args:
            name: as the client has it; without one the first model answers.
            features: of the request; called if it is routed.
            size_bytes: of what `features` looks at.

        Raises:
            ClientError: `model_not_found`.
        """
        route = self._routes.get(name or "")
        if route is None:
            return Resolution(self._models.find(name))
        started_at = time.perf_counter()
        models = self._models_of(route)  # held, as a reload may replace them while this waits
        facts = RouteFacts(await offload(size_bytes, features), caller, self._now())
        # Rules cost microseconds, the classifier tens of milliseconds (docs/decisions/0038).
        choice = self._choose_quickly(route, facts, models) or self._choose_by(route, facts, models, await self._classify(route, facts))
        return self._resolution(route, facts, models, choice, started_at)

    def resolve_session(self, name: str | None, features: Callable[[], RouteFeatures], caller: RouteCaller) -> Resolution[ModelT]:
        """
        The model of a live session, of which nothing was said yet: by rules alone.

        Raises:
            ClientError: `model_not_found`.
        """
        route = self._routes.get(name or "")
        if route is None:
            return Resolution(self._models.find(name))
        started_at = time.perf_counter()
        models = self._models_of(route)
        facts = RouteFacts(features(), caller, self._now())
        choice = self._choose_quickly(route, facts, models) or self._choose_by(route, facts, models, _Verdict())
        return self._resolution(route, facts, models, choice, started_at)

    def restore(self, decision: RouteDecision) -> Resolution[ModelT]:
        """
        The model of a request that was routed before.

        Raises:
            ClientError: `model_not_found`; it is not configured any more.
        """
        return Resolution(self._models.find(decision.model), decision)

    async def explain(self, name: str, features: RouteFeatures, caller: RouteCaller) -> Explanation:
        """
        A decision with all that leads to it, for people, who wait longer than requests; it counts and remembers nothing.

        Args:
            name: of a route.
        """
        route = self._routes[name]
        started_at = time.perf_counter()
        models = self._models_of(route)
        facts = RouteFacts(features, caller, self._now())
        choice = self._choose_quickly(route, facts, models)
        verdict = _Verdict() if choice else await self._classify(route, facts, PATIENT_S)
        choice = choice or self._choose_by(route, facts, models, verdict)
        ms = 1000 * (time.perf_counter() - started_at)
        problems = {model: self._problem(models.get(model), features) for model in route.models}
        trials = [
            RuleTrial(rule.number, rule.rule.model, rule.rule.category, tuple(rule.observe(facts)), problems[rule.rule.model])
            for rule in route.rules
        ]
        # The scores are shown to people also where they decided nothing.
        if choice.source in ("conversation", "rule"):
            verdict = await self._classify(route, facts, PATIENT_S)
        return Explanation(route.entry, features, facts.language, problems, trials, verdict.scores, verdict.problem, choice, ms)

    # How it is decided

    def _choose_quickly(self, route: Route, facts: RouteFacts, models: Mapping[str, ModelT]) -> ModelChoice | None:
        """What needs no classifier; None where neither the conversation nor a rule decides."""
        return self._choose_again(route, facts, models) or self._choose_by_rule(route, facts, models)

    def _choose_again(self, route: Route, facts: RouteFacts, models: Mapping[str, ModelT]) -> ModelChoice | None:
        features = facts.features
        if route.entry.stick == "none":
            return None
        earlier = self._sticky.find(route.entry.name, facts.caller.tenant, features.continues)
        # The table forgets, and other processes have their own; a stored response names its model.
        if earlier is None and features.answered_by is not None:
            earlier = features.answered_by, "general"
        # A later turn may need what the model can't do, such as reading a picture, and a reload may have changed the route.
        if earlier is None or earlier[0] not in route.models or self._problem(models.get(earlier[0]), features):
            return None
        return ModelChoice(*earlier, "conversation", "The conversation began with this model")

    def _choose_by_rule(self, route: Route, facts: RouteFacts, models: Mapping[str, ModelT]) -> ModelChoice | None:
        for rule in route.rules:
            if (reason := rule.reason_to_fit(facts)) is not None and self._problem(models.get(rule.rule.model), facts.features) is None:
                return ModelChoice(rule.rule.model, rule.rule.category, "rule", reason, rule.number)
        return None

    async def _classify(self, route: Route, facts: RouteFacts, timeout_s: float | None = None) -> _Verdict:
        if route.classifier is None or self._vectors is None:
            return _Verdict()
        if not (text := classified_text(facts.features.text)):
            return _Verdict(problem="there is no text to classify")
        # Without this, the embedding model, which knows English, gave 61 % of the foreign prompts a category (docs/decisions/0038).
        if route.languages and facts.language is not None and facts.language not in route.languages:
            return _Verdict(problem=f"no example is in the text's language ({facts.language})")
        try:
            vector = await self._vectors.of_request(text, timeout_s or route.entry.timeout_ms / 1000)
        except TimeoutError:
            return _Verdict(problem=f"the classifier took longer than {route.entry.timeout_ms:g} ms")
        except ApiError:
            return _Verdict(problem="the classifier is overloaded")
        scores = route.classifier.scores(vector)
        return _Verdict(scores, route.classifier.choose(scores))

    def _choose_by(self, route: Route, facts: RouteFacts, models: Mapping[str, ModelT], verdict: _Verdict) -> ModelChoice:
        """The model of the category that the classifier found, or the default."""
        reason = "No rule fits"
        if verdict.problem:
            reason += f", and {verdict.problem}"
        elif verdict.best is not None:
            category, score = verdict.best
            model = route.model_by_category[category]
            if (problem := self._problem(models.get(model), facts.features)) is None:
                return ModelChoice(model, category, "classifier", f"Similar to the examples of {category} ({score:.2f})")
            reason = f"Similar to the examples of {category}, whose model {problem}"
        elif verdict.scores:
            category, score = verdict.scores[0]
            reason += f", and no examples are similar enough ({category}: {score:.2f})"
        if (problem := self._problem(models.get(route.entry.default), facts.features)) is None:
            return ModelChoice(route.entry.default, "general", "default", f"{reason}; default model")
        for model in route.models:
            if self._problem(models.get(model), facts.features) is None:
                return ModelChoice(model, "general", "default", f"{reason}; the default model {problem}")
        # The default model then refuses the request itself, in the words of its protocol.
        return ModelChoice(route.entry.default, "general", "default", f"{reason}; no model fits better than the default, which {problem}")

    def _models_of(self, route: Route) -> dict[str, ModelT]:
        """The models of a route by name, without those that could not be started when they were configured."""
        models: dict[str, ModelT] = {}
        for name in route.models:
            with contextlib.suppress(ClientError):
                models[name] = self._models.find(name)
        return models

    def _problem(self, model: ModelT | None, features: RouteFeatures) -> str | None:
        """Why a model can't answer; None if it can."""
        return "is not there" if model is None else missing_ability(features, self._abilities(model, features))

    # Reporting the decision

    def _resolution(
        self, route: Route, facts: RouteFacts, models: Mapping[str, ModelT], choice: ModelChoice, started_at: float
    ) -> Resolution[ModelT]:
        if (model := models.get(choice.model)) is None:
            model = self._models.find(choice.model)  # it says that there is none
        entry, features = route.entry, facts.features
        if entry.stick == "conversation":
            self._sticky.remember(entry.name, facts.caller.tenant, features.begins, choice.model, choice.category)
        self._metrics.routes[entry.name, choice.model, choice.category, choice.source] += 1
        structlog.get_logger().info(
            "routed",
            route=entry.name,
            model=choice.model,
            category=choice.category,
            source=choice.source,
            **({} if choice.rule is None else {"rule": choice.rule}),
            reason=choice.reason,
            input_tokens=features.input_tokens,
            routing_ms=round(1000 * (time.perf_counter() - started_at), 1),
        )
        decision = RouteDecision(model=choice.model, category=choice.category, reasoning=choice.reason)
        return Resolution(model, decision, {ROUTE_HEADER: route_header(choice)})


def route_header(choice: ModelChoice) -> str:
    """A choice as a header for the client: printable ASCII, of `MAX_HEADER_BYTES` at most; a reason that is longer is cut."""
    head = "; ".join(_header_fields(choice))
    # RFC 9110, 5.6.4: a quoted string must escape the quotation mark and the backslash, which few clients undo.
    reason = choice.reason.replace('"', "'").replace("\\", "/").encode("ascii", "replace").decode()
    room = MAX_HEADER_BYTES - len(head) - len('; reason=""')
    reason = "".join(character if character.isprintable() else " " for character in reason)
    return f'{head}; reason="{reason if len(reason) <= room else reason[: room - 3] + "..."}"'


def _header_fields(choice: ModelChoice) -> Iterator[str]:
    yield f"category={choice.category}"
    yield f"source={choice.source}"
    if choice.rule is not None:
        yield f"rule={choice.rule}"
