"""The order in which a model is chosen: conversation, capabilities, rules, examples, default; and how it is reported."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, NamedTuple

import pytest
from hypothesis import given, strategies as st

from antiphon.config.routing import RouteEntry
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.routing import RouteDecision
from antiphon.errors import ClientError, model_not_found
from antiphon.runtime.core.metrics import Metrics
from antiphon.runtime.routing.features import RouteCaller, RouteFeatures
from antiphon.runtime.routing.router import (
    MAX_HEADER_BYTES,
    MAX_STICKY_CONVERSATIONS,
    STICK_S,
    ModelChoice,
    Resolution,
    Router,
    StickyModels,
    route_header,
)
from support.runtime.word_embedder import WordEmbedder

ABLE = Capabilities(images=True, tools=True, context_window=10_000)
EXAMPLES = [
    {"category": "code", "model": "large", "texts": ["fix this bug", "write a function"]},
    {"category": "chat", "model": "small", "texts": ["hello you", "how are you"]},
]


class Model(NamedTuple):
    name: str


class Models:
    """Three models, of which `small` takes no images."""

    capabilities: ClassVar[dict[str, Capabilities | None]] = {
        "small": Capabilities(tools=True, context_window=1000),
        "large": ABLE,
        "gone": None,
    }

    def __init__(self) -> None:
        self.absent: set[str] = set()

    def find(self, name: str | None) -> Model:
        if not self.has(name or "small"):
            raise model_not_found(name or "", self.capabilities)
        return Model(name or "small")

    def has(self, name: str) -> bool:
        return name in self.capabilities and name not in self.absent


class Setting:
    """A router of one route, and what it has counted."""

    def __init__(self, folder: Path, embedder: WordEmbedder | None = None, **route: object) -> None:
        self.models = models = Models()
        self.metrics, self.embedder = Metrics(), embedder or WordEmbedder()
        self.router: Router[Model] = Router(
            [RouteEntry.model_validate({"default": "small", **route})],
            models,
            lambda model, _features: models.capabilities[model.name],
            self.metrics,
            folder,
            folder / "examples.npz",
            new_embedder=lambda: self.embedder,
            now=lambda: datetime(2026, 11, 22, 12, tzinfo=UTC),
        )

    def resolve(self, *requests: RouteFeatures, name: str = "auto", tenant: str = "") -> list[Resolution[Model]]:
        async def run() -> list[Resolution[Model]]:
            await self.router.start()
            try:
                return [await self.router.resolve(name, lambda each=each: each, RouteCaller(tenant=tenant)) for each in requests]
            finally:
                await self.router.stop()

        return asyncio.run(run())

    def decide(self, features: RouteFeatures) -> tuple[str, str, str]:
        (resolution,) = self.resolve(features)
        decision = resolution.decision
        assert decision is not None
        assert decision.model == resolution.model.name
        assert decision.source == "router"
        return decision.model, decision.category, decision.reasoning


def rule(model: str = "large", category: str = "general", **when: object) -> dict[str, object]:
    return {"model": model, "category": category, "when": when}


def test_the_first_rule_that_fits_decides(tmp_path):
    rules = [rule(min_input_tokens=500, category="long"), rule(has_tools=True, category="agent"), rule(category="any")]
    setting = Setting(tmp_path, rules=rules)
    assert setting.decide(RouteFeatures(input_tokens=500, has_tools=True)) == ("large", "long", "Input length = 500 tokens")
    assert setting.decide(RouteFeatures(has_tools=True))[1] == "agent"
    assert setting.decide(RouteFeatures())[1] == "any"
    assert setting.metrics.routes["auto", "large", "agent", "rule"] == 1


def test_a_rule_whose_model_cannot_answer_is_passed_over(tmp_path):
    setting = Setting(tmp_path, default="large", rules=[rule("gone", "first"), rule("small", "second"), rule("large", "third")])
    assert setting.decide(RouteFeatures())[:2] == ("small", "second")
    assert setting.decide(RouteFeatures(has_images=True))[:2] == ("large", "third")
    assert setting.decide(RouteFeatures(input_tokens=990, output_tokens=20))[:2] == ("large", "third")


@pytest.mark.parametrize(
    ("features", "decision"),
    [
        (RouteFeatures(), ("small", "general", "No rule fits; default model")),
        (RouteFeatures(has_images=True), ("large", "general", "No rule fits; the default model takes no images")),
        (
            RouteFeatures(has_files=True),
            ("small", "general", "No rule fits; no model fits better than the default, which takes no files"),
        ),
    ],
)
def test_without_a_rule_the_default_answers_or_the_first_that_can(tmp_path, features, decision):
    assert Setting(tmp_path, rules=[rule(min_input_tokens=99_999)]).decide(features) == decision


def test_a_named_model_is_not_routed_and_an_unknown_one_is_not_found(tmp_path):
    setting = Setting(tmp_path)
    (resolution,) = setting.resolve(RouteFeatures(), name="large")
    assert resolution == Resolution(Model("large"))
    with pytest.raises(ClientError) as error:
        setting.resolve(RouteFeatures(), name="huge")
    assert error.value.code == "model_not_found"
    assert (setting.router.has("auto"), setting.router.has("large"), setting.router.names) == (True, False, ("auto",))


def test_examples_decide_where_no_rule_does(tmp_path):
    setting = Setting(tmp_path, examples=EXAMPLES, threshold=0.2, rules=[rule(category="images", has_images=True)])
    assert setting.decide(RouteFeatures(text="please fix this bug")) == ("large", "code", "Similar to the examples of code (0.43)")
    assert setting.decide(RouteFeatures(text="how are you"))[:2] == ("small", "chat")
    assert setting.decide(RouteFeatures(text="how are you", has_images=True))[1] == "images"
    assert setting.decide(RouteFeatures(text="quantum chromodynamics")) == (
        "small",
        "general",
        "No rule fits, and no examples are similar enough (code: 0.00); default model",
    )
    assert setting.decide(RouteFeatures()) == ("small", "general", "No rule fits, and there is no text to classify; default model")


def test_the_category_of_a_model_that_cannot_answer_leads_to_the_default(tmp_path):
    setting = Setting(tmp_path, examples=EXAMPLES, threshold=0.2, default="large")
    assert setting.decide(RouteFeatures(text="how are you", has_images=True)) == (
        "large",
        "general",
        "Similar to the examples of chat, whose model takes no images; default model",
    )


def test_who_would_wait_too_long_for_the_classifier_gets_the_default(tmp_path):
    embedder = WordEmbedder()
    setting = Setting(tmp_path, embedder, examples=EXAMPLES, timeout_ms=1)

    async def run() -> Resolution[Model]:
        await setting.router.start()
        embedder.release.clear()
        try:
            return await setting.router.resolve("auto", lambda: RouteFeatures(text="fix this bug"), RouteCaller())
        finally:
            await setting.router.stop()

    decision = asyncio.run(run()).decision
    assert decision is not None
    assert (decision.model, decision.category) == ("small", "general")
    assert decision.reasoning == "No rule fits, and the classifier took longer than 1 ms; default model"


def first_turn(*names: str, **fields: object) -> RouteFeatures:
    return RouteFeatures(begins=names, **fields)


def later_turn(*names: str, **fields: object) -> RouteFeatures:
    return RouteFeatures(continues=names, begins=names, **fields)


def test_a_conversation_keeps_its_model_as_long_as_that_can_answer(tmp_path):
    setting = Setting(tmp_path, rules=[rule("large", "reasoning", min_input_tokens=500)])
    begun, longer, picture, after = setting.resolve(
        first_turn("a"), later_turn("a", input_tokens=900), later_turn("a", has_images=True, input_tokens=900), later_turn("a")
    )
    assert [each.model.name for each in (begun, longer, picture, after)] == ["small", "small", "large", "large"]
    assert longer.headers == {"antiphon-route": 'category=general; source=conversation; reason="The conversation began with this model"'}
    assert after.decision == RouteDecision(model="large", category="reasoning", reasoning="The conversation began with this model")


def test_conversations_of_other_tenants_and_routes_that_do_not_stick_are_routed_each_time(tmp_path):
    setting = Setting(tmp_path, rules=[rule("large", min_input_tokens=500)])
    setting.resolve(first_turn("a"), tenant="one")
    assert [each.model.name for each in setting.resolve(later_turn("a", input_tokens=900), tenant="two")] == ["large"]
    setting = Setting(tmp_path, stick="none", rules=[rule("large", min_input_tokens=500)])
    assert [each.model.name for each in setting.resolve(first_turn("a"), later_turn("a", input_tokens=900))] == ["small", "large"]


def test_a_conversation_that_is_only_known_by_its_latest_response_goes_on_with_its_model(tmp_path):
    setting = Setting(tmp_path, rules=[rule("large", min_input_tokens=500)])
    assert setting.decide(RouteFeatures(answered_by="large"))[0] == "large"
    assert setting.decide(RouteFeatures(answered_by="elsewhere"))[0] == "small"


def test_conversations_are_forgotten_after_a_while_and_the_oldest_where_there_are_too_many():
    now = [0.0]
    sticky = StickyModels(lambda: now[0])
    sticky.remember("auto", "", ["a"], "large", "code")
    now[0] = STICK_S - 1
    assert sticky.find("auto", "", ["z", "a"]) == ("large", "code")
    now[0] = STICK_S
    assert sticky.find("auto", "", ["a"]) is None
    sticky.remember("auto", "", [f"c{number}" for number in range(MAX_STICKY_CONVERSATIONS + 1)], "small", "chat")
    assert sticky.find("auto", "", ["c0"]) is None
    assert sticky.find("auto", "", ["c1"]) == ("small", "chat")


def test_a_live_session_is_routed_by_rules_alone(tmp_path):
    setting = Setting(tmp_path, examples=EXAMPLES, rules=[rule("large", "agent", has_tools=True)])
    Models.capabilities["large"], able = Capabilities(listens=True), Models.capabilities["large"]
    try:
        assert (
            setting.router.resolve_session("auto", lambda: RouteFeatures(has_tools=True, is_live=True), RouteCaller()).model.name == "large"
        )
    finally:
        Models.capabilities["large"] = able
    assert setting.router.resolve_session("auto", RouteFeatures, RouteCaller()).model.name == "small"
    assert setting.router.resolve_session("large", RouteFeatures, RouteCaller()) == Resolution(Model("large"))


def test_a_stored_decision_is_taken_as_it_is(tmp_path):
    decision = RouteDecision(model="large", category="code", reasoning="Because")
    assert Setting(tmp_path).router.restore(decision) == Resolution(Model("large"), decision)


def test_an_explanation_shows_everything_and_counts_nothing(tmp_path):
    setting = Setting(tmp_path, examples=EXAMPLES, threshold=0.2, rules=[rule("large", "long", min_input_tokens=500)])

    async def run() -> None:
        await setting.router.start()
        explained = await setting.router.explain("auto", RouteFeatures(text="fix this bug", has_images=True), RouteCaller())
        assert (explained.choice.model, explained.choice.source) == ("large", "classifier")
        assert explained.problems == {"small": "takes no images", "large": None}
        assert [(trial.number, trial.observations[0].seen, trial.observations[0].holds) for trial in explained.trials] == [(1, "0", False)]
        assert [name for name, _ in explained.scores] == ["code", "chat"]
        await setting.router.stop()

    asyncio.run(run())
    assert not setting.metrics.routes


@given(st.text(max_size=600), st.none() | st.integers(1, 1000))
def test_the_header_is_short_printable_ascii(reason, number):
    header = route_header(ModelChoice("large", "c" * 64, "rule", reason, number))
    assert len(header) <= MAX_HEADER_BYTES
    assert header.isascii()
    assert header.isprintable()
    assert header.count('"') == 2
    assert header.endswith('"')


def in_loop(scenario):
    asyncio.run(scenario())


def test_other_routes_decide_from_one_request_to_the_next_and_conversations_keep_their_models(tmp_path):
    async def scenario():
        setting = Setting(tmp_path, rules=[rule(has_tools=True, category="agent")], examples=EXAMPLES, threshold=0.2)
        router = setting.router
        await router.start()

        async def choice(**features):
            resolution = await router.resolve("auto", lambda: RouteFeatures(**features), RouteCaller())
            return resolution.model.name, resolution.decision.category

        assert await choice(has_tools=True, begins=("one",)) == ("large", "agent")
        entry = RouteEntry.model_validate({"default": "small", "examples": EXAMPLES, "threshold": 0.2})
        routes = await router.prepare([entry])
        assert await choice(has_tools=True) == ("large", "agent"), "those before, until they are exchanged"
        router.configure(routes)
        assert await choice(has_tools=True, continues=("one",)) == ("large", "agent")
        assert await choice(has_tools=True) == ("small", "general")
        assert await choice(text="please fix this bug") == ("large", "code")
        assert setting.embedder.texts.count("fix this bug") == 1, "it has its vector"
        assert (await router.prepare([entry]))["auto"] is routes["auto"]
        router.configure(await router.prepare([RouteEntry(default="small")]))
        assert await choice(continues=("one",)) == ("small", "general"), "the route has that model no more"
        await router.stop()

    in_loop(scenario)


def test_examples_may_come_with_a_later_configuration(tmp_path):
    async def scenario():
        setting = Setting(tmp_path)
        await setting.router.start()
        entry = RouteEntry.model_validate({"default": "small", "examples": EXAMPLES, "threshold": 0.2})
        setting.router.configure(await setting.router.prepare([entry]))
        resolution = await setting.router.resolve("auto", lambda: RouteFeatures(text="please fix this bug"), RouteCaller())
        assert resolution.model.name == "large"
        await setting.router.stop()

    in_loop(scenario)


def test_a_model_that_is_not_offered_is_passed_over(tmp_path):
    rules = [rule("absent", "first"), rule("large", "second", has_tools=True)]
    setting = Setting(tmp_path, default="absent", rules=rules)
    assert setting.decide(RouteFeatures(has_tools=True))[:2] == ("large", "second")
    assert setting.decide(RouteFeatures()) == ("large", "general", "No rule fits; the default model is not there")
    with pytest.raises(ClientError, match="absent"):
        Setting(tmp_path, default="absent").decide(RouteFeatures())


def test_a_request_is_answered_by_a_model_that_was_there_when_it_came(tmp_path):
    async def scenario():
        embedder = WordEmbedder(is_held=True)
        setting = Setting(tmp_path, embedder, examples=EXAMPLES, threshold=0.2, timeout_ms=10_000)
        embedder.release.set()
        await setting.router.start()
        embedder.release.clear()
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(setting.router.resolve("auto", lambda: RouteFeatures(text="please fix this bug"), RouteCaller()))
            while "please fix this bug" not in embedder.texts:  # noqa: ASYNC110 - nothing else says that it waits
                await asyncio.sleep(0)
            setting.models.absent = {"small", "large"}
            embedder.release.set()
        assert asked.result().model.name == "large"
        await setting.router.stop()

    in_loop(scenario)
