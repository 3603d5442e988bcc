"""One rewrite of a text, as the configuration describes it."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from antiphon.config.rewrites import RewriteEntry
from antiphon.engine_api import commands, events, history
from antiphon.engine_api.engine import Engine
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError
from antiphon.runtime.language import MAX_CHARS, certain_language
from antiphon.runtime.rewriting.annotations import move_by_edits, move_by_words
from antiphon.runtime.rewriting.ask_model import Ask, Reply, ask_other, read_reply, rewrite_request
from antiphon.runtime.rewriting.failure import RewriteFailed
from antiphon.runtime.rewriting.rule_pool import RulePool, RuleTask
from antiphon.runtime.rewriting.translation import names_language

MAX_GROWTH, GROWTH_CHARS = 3, 1_000
"""A text may become so many times as long, and so many characters more: languages differ, and a heading may be added."""


class Text(Struct, frozen=True):
    """A text, and annotations of places in it in the shape of the Responses API."""

    content: str
    annotations: Sequence[dict[str, Any]] = ()


class Answer(Struct, frozen=True, kw_only=True):
    """
    What is rewritten.

    Attributes:
        request: what it answers.
        settings: of the conversation that it belongs to.
        engine: that answered.
        ask: asks the same engine.
        add_usage: takes the tokens that the rewrite took.
    """

    request: commands.Respond
    settings: ConversationSettings
    engine: Engine
    ask: Ask
    add_usage: Callable[[events.Usage], None]


class RewritingModel(Protocol):
    """A model that may rewrite; its engine runs as long as this is referenced."""

    @property
    def engine(self) -> Engine:
        """The engine that is asked."""


FindModel = Callable[[str], RewritingModel]
"""The model of a name; raises `ApiError` where there is none."""


class Rewrite:
    """
    A rewrite.

    Args:
        find_model: the model of a name.
    """

    def __init__(self, entry: RewriteEntry, rules: RulePool, find_model: FindModel) -> None:
        self.entry = entry
        self._rules = rules
        self._find_model = find_model

    def is_for(self, models: Sequence[str], key_id: str) -> bool:
        """Whether it is for answers of a model, under any of its names, to this key."""
        patterns, keys = self.entry.models, self.entry.when.keys
        return (not patterns or any(_fits(pattern, name) for pattern in patterns for name in models)) and (not keys or key_id in keys)

    def fits(self, text: str, request: commands.Respond) -> bool:
        """Whether there may be something to do: a text that is in the right language already has nothing to align."""
        entry, when = self.entry, self.entry.when
        if not max(when.min_chars, 1) <= len(text) <= entry.max_chars:
            return False
        if when.languages and certain_language(text) not in when.languages:
            return False
        if entry.kind != "language":
            return True
        language = self._target_language(request)
        return language is not None and certain_language(text) not in (None, language)

    async def prepare(self) -> None:
        """
        Start what the rewrite needs, which does not count as its time.

        Raises:
            RewriteFailed: it can't be started.
        """
        if self.entry.kind == "rule":
            await self._rules.prepare()

    async def apply(self, text: Text, answer: Answer) -> Text:
        """
        The text after it.

        Raises:
            RewriteFailed: it stays as it was.
        """
        if self.entry.kind == "rule":
            return await self._apply_rules(text, answer)
        content = await self._ask_model(text.content, answer)
        return Text(content, move_by_words(text.annotations, text.content, content))

    async def _apply_rules(self, text: Text, answer: Answer) -> Text:
        task = RuleTask(
            text=text.content,
            rules=[(rule.pattern, rule.replacement, rule.ignore_case) for rule in self.entry.rules],
            skip_code=self.entry.skip_code,
            max_chars=MAX_GROWTH * len(text.content) + GROWTH_CHARS,
        )
        result = await self._rules.apply(task, f"{answer.settings.tenant} {answer.settings.key_id}")
        annotations = list(text.annotations)
        for edits in result.edits:
            annotations = move_by_edits(annotations, edits)
        return Text(result.text, annotations)

    async def _ask_model(self, text: str, answer: Answer) -> str:
        entry = self.entry
        is_same = entry.model is None or entry.model == answer.settings.model
        model = answer if is_same else self._other_model(entry.model or "")  # Referenced to the end, as a reload may remove it meanwhile.
        engine = model.engine
        settings = ConversationSettings(model=entry.model or "", tenant=answer.settings.tenant, key_id=answer.settings.key_id)
        ask = answer.ask if is_same else ask_other(engine, settings)
        language = self._target_language(answer.request) if entry.kind == "language" else None
        request = rewrite_request(entry, text, language, last_question(answer.request), engine.capabilities)
        reply = Reply(MAX_GROWTH * len(text) + GROWTH_CHARS)
        try:
            content = read_reply(await ask(request, reply), entry, text)
        finally:
            if reply.usage is not None:  # The tokens were used even if the rewrite failed.
                answer.add_usage(reply.usage)
        # Only a clear failure: short texts are in doubt, and are taken.
        if language is not None and certain_language(content) not in (None, language):
            raise RewriteFailed(f"the model did not write in the language '{language}'")
        return content

    def _other_model(self, name: str) -> RewritingModel:
        try:
            return self._find_model(name)
        except ApiError as error:
            raise RewriteFailed(error.message) from None

    def _target_language(self, request: commands.Respond) -> str | None:
        """
        The language that the answer should be in; None where that is unknown, or the question is about languages itself.
        """
        if self.entry.language is not None:
            return self.entry.language
        question = last_question(request)
        return None if names_language(question[:MAX_CHARS]) else certain_language(question)


def last_question(request: commands.Respond) -> str:
    """The text of the user's last message; empty where there is none."""
    for item in reversed(request.history):
        if isinstance(item, history.Message) and item.role == "user":
            texts = [part.text if isinstance(part, history.TextPart) else _transcript(part) for part in item.parts]
            return "\n".join(text for text in texts if text)
    return ""


def _transcript(part: history.HistoryPart) -> str:
    return part.transcript or "" if isinstance(part, history.SpeechPart) else ""


def _fits(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
