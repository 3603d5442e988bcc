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
from antiphon.engine_api.model_options import convert_options, option_names
from antiphon.engine_api.options import ConversationSettings
from antiphon.engine_api.truncation import drop_oldest, output_room
from antiphon.engines.local import prompt, sampling
from antiphon.engines.local.conversation import LocalConversation
from antiphon.engines.local.generation import CompletionReader, constrain_output, server_failed_error
from antiphon.engines.local.kv_slots import KvSlotLease, KvSlots
from antiphon.engines.local.llama_server import LlamaServer, LlamaSettings, runtime_problem
from antiphon.engines.local.prefill import PrefillScheduler
from antiphon.engines.local.prompt_turns import MIN_CHUNK_TOKENS, SHORT_PROMPT_TOKENS, PromptTurns, ResponseSlots, next_chunk_tokens
from antiphon.engines.local.tool_grammar import TOOL_CALL_OPEN, GrammarTool, callable_tools
from antiphon.errors import ApiError, ServerError, context_length_exceeded, did_you_mean, quote_list
from antiphon.weights import catalogue, fetch
from antiphon.weights.verify import ProgressCallback

MAX_WAITING_RESPONSES = 64
"""How many responses may wait for a slot."""

SESSIONS_PER_SLOT = 2
"""Live conversations for each slot: most of the time a conversation generates nothing."""

_Positive = Annotated[int, Meta(ge=1)]


class LocalOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """
    The model's table in the configuration.

    Attributes:
        model: a name in the catalogue; by default the name of the table.
        path: a GGUF file, instead of `model`.
        slots: responses generated at the same time.
        context: tokens for each slot.
        threads: by default one for each processor, up to 8.
        template: `chatml`, or `gguf` for the file's own.
        gpu_layers: how many layers go to a GPU; by default as many as fit.
        spin: whether threads wait for each other without sleeping, for processors that do nothing else.
    """

    model: str | None = None
    path: str | None = None
    slots: _Positive = 2
    context: Annotated[int, Meta(ge=256)] = 4096
    threads: _Positive | None = None
    template: Literal["chatml", "gguf"] | None = None
    gpu_layers: Annotated[int, Meta(ge=0)] | None = None
    spin: bool = False


def build(model: str, options: Mapping[str, Any], build_context: BuildContext) -> "LocalEngine":
    """
    A local engine from the model's table in the configuration.

    Raises:
        ServerError: an option is unknown or wrong, or names no model.
    """
    names = LocalOptions.__struct_fields__
    problems = []
    if unknown := sorted(options.keys() - set(names)):
        question = did_you_mean(unknown[0], option_names(LocalOptions))
        problems.append(f"Model '{model}' has {quote_list(unknown)}; the engine 'local' knows {quote_list(names)}.{question}")
    own_options = {name: value for name, value in options.items() if name in names}
    prefix = "" if unknown else f"Model '{model}' has a wrong option: "
    local_options = convert_options(own_options, LocalOptions, prefix, problems)
    if local_options.model and local_options.path:
        raise ServerError(f"Model '{model}' has both 'model' and 'path'; give one.")
    entry = None if local_options.path else catalogue.find(local_options.model or model, "llm")
    return LocalEngine(local_options, entry, build_context)


class LocalEngine:
    """
    A model of the catalogue, or any GGUF file.

    Attributes:
        prefill_scheduler: decides which conversation may prefill.
    """

    def __init__(self, options: LocalOptions, entry: catalogue.CatalogueModel | None, build_context: BuildContext) -> None:
        self._options = options
        self._entry = entry
        self._build_context = build_context
        self._template = options.template or (entry.template if entry else "gguf")
        self._defaults = {**sampling.NATIVE_DEFAULTS, **(entry.sampling if entry else {})}
        self._llama: LlamaServer | None = None
        self._slots = KvSlots(options.slots)
        self._response_slots = ResponseSlots(options.slots)
        self._prompt_turns = PromptTurns()
        self.prefill_scheduler = PrefillScheduler(options.slots)
        self._conversations: set[LocalConversation] = set()
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
        Load the model; download it first where it isn't here.

        Raises:
            ServerError: the extra `local` is not installed, or the model can't be downloaded or loaded.
        """
        if problem := runtime_problem():  # before a large download that would be of no use
            raise ServerError(problem)
        path = await asyncio.to_thread(self._model_file)
        threads = self._options.threads or min(8, _cpu_count())
        options = self._options
        settings = LlamaSettings(
            path=path, slots=options.slots, context=options.context, threads=threads, gpu_layers=options.gpu_layers, spin=options.spin
        )
        self._llama = await LlamaServer.load(settings)
        self.capabilities = msgspec.structs.replace(self.capabilities, context_window=self._llama.context)

    async def stop(self) -> None:
        llama, self._llama = self._llama, None
        if llama is None:
            return
        if tasks := [task for conversation in self._conversations for task in conversation.cancel_all()]:
            await asyncio.wait(tasks)
        await llama.close()

    @contextlib.asynccontextmanager
    async def open(self, settings: ConversationSettings, deliver: Deliver) -> AsyncIterator[EngineConversation]:
        async with asyncio.TaskGroup() as tasks:
            conversation = LocalConversation(self, settings.tenant, deliver, tasks)
            self._conversations.add(conversation)
            try:
                yield conversation
            finally:
                self._conversations.discard(conversation)
                self.prefill_scheduler.release_claim(conversation)
                conversation.close()

    async def count(self, request: commands.Respond) -> int:
        """
        The tokens of the whole prompt, also of one that is too long, or would be truncated.

        Raises:
            ServerError: the model is not loaded, or its server failed.
        """
        try:
            return len(await self._tokenize_prompt(self._require_llama(), request, callable_tools(request), request.history))
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise server_failed_error(error) from None

    def _require_llama(self) -> LlamaServer:
        if self._llama is None:
            raise ServerError("The local model is not loaded.")
        return self._llama

    def admit(self) -> None:
        if sum(conversation.active_responses for conversation in self._conversations) >= self._options.slots + MAX_WAITING_RESPONSES:
            raise EngineOverrun(f"{MAX_WAITING_RESPONSES} responses wait for the local model already")

    async def generate(self, request: commands.Respond, tenant: str, may_read: asyncio.Event, deliver: Deliver) -> list[events.EngineEvent]:
        llama = self._require_llama()
        tools = callable_tools(request)
        parser, constraint = constrain_output(request, tools)
        tokens = await self._fit_prompt(llama, request, tools)
        payload = sampling.request_fields(request.sampling, self._defaults) | constraint | {"prompt": tokens, "stream": True}
        is_long = len(tokens) - self._slots.cached_tokens(tenant, tokens) > SHORT_PROMPT_TOKENS
        async with self._response_slots.slot(is_long=is_long):
            lease = self._slots.acquire(tenant, tokens)
            reader = CompletionReader(request, parser, deliver, lease.cached_tokens)
            try:
                can_reuse = await self._process_prompt(llama, lease, tokens)
                fields = payload | {"id_slot": lease.number, "cache_prompt": can_reuse}
                async with self._prompt_turns.turn() as turn:
                    await llama.complete(fields, may_read, reader.feed, on_begin=turn.begin_generating)
            finally:
                # Before the first token, only what was there before is sure to be in the cache.
                self._slots.release(lease, (*tokens, *reader.tokens) if reader.tokens else tokens[: lease.cached_tokens])
        return reader.end_events()

    async def _process_prompt(self, llama: LlamaServer, lease: KvSlotLease, tokens: Sequence[int]) -> bool:
        """
        Process a long prompt up to its last chunk into the slot's cache, by turns with others.

        Returns:
            Whether the slot's cache may be used for the rest.
        """
        clock = asyncio.get_running_loop().time
        chunk_tokens, end, can_reuse = MIN_CHUNK_TOKENS, lease.cached_tokens, lease.can_reuse
        while len(tokens) - end > chunk_tokens:
            end += chunk_tokens
            async with self._prompt_turns.turn():
                begun_at = clock()
                await llama.process_prompt(tokens[:end], lease.number, can_reuse=can_reuse)
                chunk_s = clock() - begun_at
            can_reuse = True
            chunk_tokens = next_chunk_tokens(chunk_tokens, chunk_s)
            await self._prompt_turns.give_way(chunk_s)
        return can_reuse

    async def prefill(self, request: commands.Respond, tenant: str) -> None:
        if self._llama is None or self._response_slots.is_full:
            return
        with contextlib.suppress(ApiError, aiohttp.ClientError, ValueError, OSError):  # the request itself will report it
            tokens = await self._tokenize_prompt(self._llama, request, callable_tools(request), request.history)
            if len(tokens) > self._llama.context or self._response_slots.is_full:
                return
            async with self._response_slots.slot(is_long=False):
                lease = self._slots.acquire(tenant, tokens)
                try:
                    await self._llama.process_prompt(tokens, lease.number, can_reuse=lease.can_reuse)
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
        """
        The prompt's tokens; if truncation is allowed, with as much of the end of the history as leaves room for the
        output.
        """
        tokens = await self._tokenize_prompt(llama, request, tools, request.history)
        room = output_room(request, llama.context) if request.truncate else 1
        limit = llama.context - room
        if request.retention is not None and request.retention.max_tokens is not None and request.truncate:
            limit = min(limit, len(await self._tokenize_prompt(llama, request, tools, ())) + request.retention.max_tokens)
        if len(tokens) <= limit:
            return tokens
        if not request.truncate:
            raise context_length_exceeded(llama.context, len(tokens))
        # Dropping more than is needed now keeps the start of the prompt, and so its KV cache, for the next turns
        # (Realtime reference: `truncation.retention_ratio`).
        target = int(limit * request.retention.ratio) if request.retention is not None else limit
        shorter = await drop_oldest(
            request.history, lambda history: self._tokenize_prompt(llama, request, tools, history), len, limit, target
        )
        if shorter is None:
            raise context_length_exceeded(llama.context, len(tokens))
        return shorter[1]

    async def _tokenize_prompt(
        self, llama: LlamaServer, request: commands.Respond, tools: Sequence[GrammarTool], history: Sequence[engine_history.HistoryItem]
    ) -> list[int]:
        messages = prompt.prompt_messages(request, tools, history)
        assistant_prefix = TOOL_CALL_OPEN if request.tool_choice.mode == "required" else ""
        if self._template == "chatml":
            segments = prompt.chatml(messages, assistant_prefix)
        else:
            placeholders = prompt.TemplatePlaceholders(messages)
            segments = placeholders.fill(await llama.apply_template(placeholders.messages), assistant_prefix)
        tokens: list[int] = []
        for index, segment in enumerate(segments):
            tokens += await llama.tokenize(segment, add_special=index == 0)
        return tokens


def _report_each_stage_once(notice: Callable[[str], None]) -> ProgressCallback:
    """A progress callback that notices each stage once."""
    stages: set[str] = set()

    def report(stage: str, _done_bytes: int, total_bytes: int) -> None:
        if stage not in stages:
            stages.add(stage)
            notice(f"{stage} ({total_bytes / 1e6:.0f} MB)")

    return report


def _cpu_count() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
