"""
The embedded engine: a small language model on this machine's processor, loaded by llama.cpp.

`docs/reference/engine-local.md` lists its options and what it can do.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp
import msgspec
from msgspec import Meta, Struct

from antiphon.engine_api import commands, events, history as engine_history
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, Deliver, EngineConversation, EngineOverrun
from antiphon.engine_api.options import ConversationSettings
from antiphon.engines.local import prompt, sampling
from antiphon.engines.local.conversation import _LocalConversation
from antiphon.engines.local.generation import _CompletionReader, _constrain_output, _server_failed_error
from antiphon.engines.local.kv_slots import KvSlots
from antiphon.engines.local.llama_server import LlamaServer, LlamaSettings
from antiphon.engines.local.prefill import PrefillScheduler
from antiphon.engines.local.tool_grammar import TOOL_CALL_OPEN, GrammarTool, callable_tools
from antiphon.errors import ApiError, ServerError, context_length_exceeded, quote_list
from antiphon.weights import catalogue, fetch
from antiphon.weights.verify import ProgressCallback

MAX_WAITING_RESPONSES = 64
"""Answers that may wait for a slot."""

SESSIONS_PER_SLOT = 2
"""How many live conversations are good to have for each: nobody speaks, or is answered, all the time."""

RESERVED_OUTPUT_TOKENS = 512
"""What dropping old turns leaves for the answer where the client doesn't say how long it may get."""

_ALWAYS_READING = asyncio.Event()
_ALWAYS_READING.set()

_Positive = Annotated[int, Meta(ge=1)]


class LocalOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """
    The model's table in the configuration.

    Attributes:
        model: a name of the catalogue; by default the model's own.
        path: a GGUF file, in place of `model`.
        slots: answers at a time.
        context: tokens for each of them.
        threads: by default one for each processor, up to 8.
        template: `chatml`, or `gguf` for the file's own.
        gpu_layers: how many go to a GPU; by default as many as fit.
    """

    model: str | None = None
    path: str | None = None
    slots: _Positive = 2
    context: Annotated[int, Meta(ge=256)] = 4096
    threads: _Positive | None = None
    template: Literal["chatml", "gguf"] | None = None
    gpu_layers: Annotated[int, Meta(ge=0)] | None = None


def build(model: str, options: Mapping[str, Any], build_context: BuildContext) -> "LocalEngine":
    """
    A local engine from the model's table in the configuration.

    Raises:
        ServerError: an option is unknown or wrong, or names no model.
    """
    if unknown := options.keys() - set(LocalOptions.__struct_fields__):
        raise ServerError(
            f"Model '{model}' has {quote_list(sorted(unknown))}; the engine 'local' knows {quote_list(LocalOptions.__struct_fields__)}."
        )
    try:
        chosen = msgspec.convert(dict(options), LocalOptions, strict=False)
    except msgspec.ValidationError as error:
        raise ServerError(f"Model '{model}' has a wrong option: {error}.") from None
    if chosen.model and chosen.path:
        raise ServerError(f"Model '{model}' has both 'model' and 'path'; give one.")
    entry = None if chosen.path else catalogue.find(chosen.model or model)
    return LocalEngine(chosen, entry, build_context)


class LocalEngine:
    """
    A model of the catalogue, or any GGUF file.

    Attributes:
        ahead: who may read a prompt before it is asked for.
    """

    def __init__(self, options: LocalOptions, entry: catalogue.CatalogueModel | None, build_context: BuildContext) -> None:
        self._options = options
        self._entry = entry
        self._build_context = build_context
        self._template = options.template or (entry.template if entry else "gguf")
        self._defaults = {**sampling.NATIVE_DEFAULTS, **(entry.sampling if entry else {})}
        self._llama: LlamaServer | None = None
        self._slots = KvSlots(options.slots)
        self._free_slots = asyncio.Semaphore(options.slots)
        self.prefill_scheduler = PrefillScheduler(options.slots)
        self._conversations: set[_LocalConversation] = set()
        self.capabilities = Capabilities(
            tools=True,
            custom_tools=True,
            json_object=True,
            json_schema=True,
            truncation=True,
            penalties=True,
            max_top_logprobs=sampling.MAX_LOGPROBS,
            temperature_default=self._defaults["temperature"],
            top_p_default=self._defaults["top_p"],
            context_window=options.context,
            counts_tokens=True,
            foresees=True,
            sessions=SESSIONS_PER_SLOT * options.slots,
        )

    async def start(self) -> None:
        """
        Load the model, fetching it first where it isn't here.

        Raises:
            ServerError: it can't be had, or can't be loaded.
        """
        path = await asyncio.to_thread(self._model_file)
        threads = self._options.threads or min(8, _cpu_count())
        setup = LlamaSettings(
            path=path, slots=self._options.slots, context=self._options.context, threads=threads, gpu_layers=self._options.gpu_layers
        )
        self._llama = await LlamaServer.load(setup)
        self.capabilities = msgspec.structs.replace(self.capabilities, context_window=self._llama.context)

    async def stop(self) -> None:
        """Break off what is being answered and unload the model."""
        llama, self._llama = self._llama, None
        if llama is None:
            return
        if tasks := [task for conversation in self._conversations for task in conversation.cancel_all()]:
            await asyncio.wait(tasks)
        await llama.close()

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        """A conversation; its answers are generated side by side, as far as there are slots."""
        async with asyncio.TaskGroup() as tasks:
            conversation = _LocalConversation(self, settings.tenant, deliver, tasks)
            self._conversations.add(conversation)
            try:
                yield conversation
            finally:
                self._conversations.discard(conversation)
                self.prefill_scheduler.release_claim(conversation)
                conversation.close()

    async def count(self, request: commands.Respond) -> int:
        """
        The tokens of the prompt, all of it: also of one that is too long to be answered, or would be cut to be.

        Raises:
            ServerError: the model is not loaded, or its server failed.
        """
        try:
            return len(await self._tokenize_prompt(self._require_llama(), request, callable_tools(request), request.history))
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise _server_failed_error(error) from None

    def _require_llama(self) -> LlamaServer:
        if self._llama is None:
            raise ServerError("The local model is not loaded.")
        return self._llama

    def admit(self) -> None:
        """
        Make sure that there is room for one more answer.

        Raises:
            EngineOverrun: there is not.
        """
        if sum(conversation.active_responses for conversation in self._conversations) >= self._options.slots + MAX_WAITING_RESPONSES:
            raise EngineOverrun(f"{MAX_WAITING_RESPONSES} answers wait for the local model already")

    async def generate(self, request: commands.Respond, tenant: str, may_read: asyncio.Event, deliver: Deliver) -> list[events.EngineEvent]:
        """
        Generate an answer: all words but the last go to `say`, the last are returned.

        Raises:
            ApiError: it can't be answered.
            aiohttp.ClientError: the native server is gone.
        """
        llama = self._require_llama()
        held = callable_tools(request)
        reader, rules = _constrain_output(request, held)
        tokens = await self._fit_prompt(llama, request, held)
        order = sampling.request_fields(request.sampling, self._defaults) | rules | {"prompt": tokens, "stream": True}
        async with self._free_slots:
            lease = self._slots.acquire(tenant, tokens)
            listener = _CompletionReader(request, reader, deliver)
            try:
                await llama.complete(order | {"id_slot": lease.number, "cache_prompt": lease.can_reuse}, may_read, listener.feed)
            finally:
                self._slots.release(lease, (*tokens, *listener.tokens))
        return listener.end_events()

    async def prefill(self, request: commands.Respond, tenant: str) -> None:
        """Read what will be asked, as far as it is known, so that it is known when it is asked; only where nobody waits for a slot."""
        if self._llama is None or self._free_slots.locked():
            return
        with contextlib.suppress(ApiError, aiohttp.ClientError, ValueError, OSError):  # what fails, fails when it is asked
            tokens = await self._tokenize_prompt(self._llama, request, callable_tools(request), request.history)
            if len(tokens) > self._llama.context or self._free_slots.locked():
                return
            async with self._free_slots:
                lease = self._slots.acquire(tenant, tokens)
                order = {"prompt": tokens, "stream": True, "n_predict": 0, "id_slot": lease.number, "cache_prompt": lease.can_reuse}
                try:
                    await self._llama.complete(order, _ALWAYS_READING, lambda _chunks: True)
                finally:
                    self._slots.release(lease, tokens)

    def _model_file(self) -> Path:
        if self._entry is None:
            path = self._build_context.base_folder / Path(self._options.path or "").expanduser()
            if not path.is_file():
                raise ServerError(f"There is no model file {path}.")
            return path
        return self._entry.main_file(
            fetch.ensure(self._entry, self._build_context.weights_folder, _report_each_stage_once(self._build_context.notice))
        )

    async def _fit_prompt(self, llama: LlamaServer, request: commands.Respond, tools: Sequence[GrammarTool]) -> list[int]:
        """The prompt's tokens; of the history, where that is allowed, as much of its end as leaves room for an answer."""
        tokens = await self._tokenize_prompt(llama, request, tools, request.history)
        room = min(request.sampling.max_tokens or RESERVED_OUTPUT_TOKENS, llama.context // 4) if request.truncate else 1
        limit = llama.context - room
        if request.retention is not None and request.retention.max_tokens is not None and request.truncate:
            limit = min(limit, len(await self._tokenize_prompt(llama, request, tools, ())) + request.retention.max_tokens)
        if len(tokens) <= limit:
            return tokens
        groups = prompt.droppable_groups(request.history) if request.truncate else []
        # Who drops more than is needed now has a prompt that begins as the last one did for a while to come.
        aim = int(limit * request.retention.ratio) if request.retention is not None else limit
        fewest, most, fitting = 1, len(groups), None
        while fewest <= most:
            drop = (fewest + most) // 2
            shorter = await self._tokenize_prompt(llama, request, tools, prompt.drop_groups(request.history, groups[:drop]))
            if len(shorter) <= (aim if drop < len(groups) else limit):
                fitting, most = shorter, drop - 1
            else:
                fewest = drop + 1
        if fitting is None:
            raise context_length_exceeded(llama.context, len(tokens))
        return fitting

    async def _tokenize_prompt(
        self, llama: LlamaServer, request: commands.Respond, tools: Sequence[GrammarTool], history: Sequence[engine_history.HistoryItem]
    ) -> list[int]:
        said = prompt.prompt_messages(request, tools, history)
        lead = TOOL_CALL_OPEN if request.tool_choice.mode == "required" else ""
        if self._template == "chatml":
            segments = prompt.chatml(said, lead)
        else:
            stencil = prompt.TemplatePlaceholders(said)
            segments = stencil.fill(await llama.apply_template(stencil.messages), lead)
        tokens: list[int] = []
        for number, segment in enumerate(segments):
            tokens += await llama.tokenize(segment, add_special=number == 0)
        return tokens


def _report_each_stage_once(notice: Callable[[str], None]) -> ProgressCallback:
    """A report that says each stage once."""
    stages: set[str] = set()

    def report(stage: str, _done_bytes: int, total_bytes: int) -> None:
        if stage not in stages:
            stages.add(stage)
            notice(f"{stage} ({total_bytes / 1e6:.0f} MB)")

    return report


def _cpu_count() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
