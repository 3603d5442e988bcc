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

from antiphon.engine_api import commands, events as talk_events, history as turns
from antiphon.engine_api.capabilities import Abilities
from antiphon.engine_api.engine import Conversation, Deliver, EngineOverrun, Place
from antiphon.engine_api.options import Settings
from antiphon.engines.local import prompt, sampling
from antiphon.engines.local.conversation import _Conversation
from antiphon.engines.local.generation import _failed, _held_to, _Listener
from antiphon.engines.local.kv_slots import Slots
from antiphon.engines.local.llama_server import Llama, Setup
from antiphon.engines.local.prefill import Ahead
from antiphon.engines.local.tool_grammar import OPEN, Offer, offers
from antiphon.errors import Fault, OurFault, context_length_exceeded, listed
from antiphon.weights import catalogue, fetch
from antiphon.weights.verify import Report

WAITING = 64
"""Answers that may wait for a slot."""

SESSIONS_PER_SLOT = 2
"""How many live conversations are good to have for each: nobody speaks, or is answered, all the time."""

ROOM_TOKENS = 512
"""What dropping old turns leaves for the answer where the client doesn't say how long it may get."""

_ALWAYS = asyncio.Event()
_ALWAYS.set()

_Positive = Annotated[int, Meta(ge=1)]


class Options(Struct, frozen=True, forbid_unknown_fields=True):
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


def build(model: str, options: Mapping[str, Any], place: Place) -> "Local":
    """
    A local engine from the model's table in the configuration.

    Raises:
        OurFault: an option is unknown or wrong, or names no model.
    """
    if unknown := options.keys() - set(Options.__struct_fields__):
        raise OurFault(f"Model '{model}' has {listed(sorted(unknown))}; the engine 'local' knows {listed(Options.__struct_fields__)}.")
    try:
        chosen = msgspec.convert(dict(options), Options, strict=False)
    except msgspec.ValidationError as error:
        raise OurFault(f"Model '{model}' has a wrong option: {error}.") from None
    if chosen.model and chosen.path:
        raise OurFault(f"Model '{model}' has both 'model' and 'path'; give one.")
    entry = None if chosen.path else catalogue.find(chosen.model or model)
    return Local(chosen, entry, place)


class Local:
    """
    A model of the catalogue, or any GGUF file.

    Attributes:
        ahead: who may read a prompt before it is asked for.
    """

    def __init__(self, options: Options, entry: catalogue.Model | None, place: Place) -> None:
        self._options = options
        self._entry = entry
        self._place = place
        self._template = options.template or (entry.template if entry else "gguf")
        self._defaults = {**sampling.NATIVE, **(entry.sampling if entry else {})}
        self._llama: Llama | None = None
        self._slots = Slots(options.slots)
        self._free = asyncio.Semaphore(options.slots)
        self.ahead = Ahead(options.slots)
        self._conversations: set[_Conversation] = set()
        self.abilities = Abilities(
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
            OurFault: it can't be had, or can't be loaded.
        """
        path = await asyncio.to_thread(self._file)
        threads = self._options.threads or min(8, _processors())
        setup = Setup(
            path=path, slots=self._options.slots, context=self._options.context, threads=threads, gpu_layers=self._options.gpu_layers
        )
        self._llama = await Llama.load(setup)
        self.abilities = msgspec.structs.replace(self.abilities, context_window=self._llama.context)

    async def stop(self) -> None:
        """Break off what is being answered and unload the model."""
        llama, self._llama = self._llama, None
        if llama is None:
            return
        if tasks := [task for conversation in self._conversations for task in conversation.break_off()]:
            await asyncio.wait(tasks)
        await llama.close()

    @contextlib.asynccontextmanager
    async def open(self, settings: Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
        """A conversation; its answers are generated side by side, as far as there are slots."""
        async with asyncio.TaskGroup() as tasks:
            conversation = _Conversation(self, settings.tenant, deliver, tasks)
            self._conversations.add(conversation)
            try:
                yield conversation
            finally:
                self._conversations.discard(conversation)
                self.ahead.gives_up(conversation)
                conversation.hush()

    async def count(self, ask: commands.Respond) -> int:
        """
        The tokens of the prompt, all of it: also of one that is too long to be answered, or would be cut to be.

        Raises:
            OurFault: the model is not loaded, or its server failed.
        """
        try:
            return len(await self._tokens(self._loaded(), ask, offers(ask), ask.history))
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise _failed(error) from None

    def _loaded(self) -> Llama:
        if self._llama is None:
            raise OurFault("The local model is not loaded.")
        return self._llama

    def admit(self) -> None:
        """
        Make sure that there is room for one more answer.

        Raises:
            EngineOverrun: there is not.
        """
        if sum(conversation.answering for conversation in self._conversations) >= self._options.slots + WAITING:
            raise EngineOverrun(f"{WAITING} answers wait for the local model already")

    async def answer(self, ask: commands.Respond, tenant: str, may_read: asyncio.Event, say: Deliver) -> list[talk_events.FromEngine]:
        """
        Generate an answer: all words but the last go to `say`, the last are returned.

        Raises:
            Fault: it can't be answered.
            aiohttp.ClientError: the native server is gone.
        """
        llama = self._loaded()
        held = offers(ask)
        reader, rules = _held_to(ask, held)
        tokens = await self._fitted(llama, ask, held)
        order = sampling.order(ask.sampling, self._defaults) | rules | {"prompt": tokens, "stream": True}
        async with self._free:
            lease = self._slots.take(tenant, tokens)
            listener = _Listener(ask, reader, say)
            try:
                await llama.complete(order | {"id_slot": lease.number, "cache_prompt": lease.reuse}, may_read, listener.take)
            finally:
                self._slots.give_back(lease, (*tokens, *listener.tokens))
        return listener.ending()

    async def foresee(self, ask: commands.Respond, tenant: str) -> None:
        """Read what will be asked, as far as it is known, so that it is known when it is asked; only where nobody waits for a slot."""
        if self._llama is None or self._free.locked():
            return
        with contextlib.suppress(Fault, aiohttp.ClientError, ValueError, OSError):  # what fails, fails when it is asked
            tokens = await self._tokens(self._llama, ask, offers(ask), ask.history)
            if len(tokens) > self._llama.context or self._free.locked():
                return
            async with self._free:
                lease = self._slots.take(tenant, tokens)
                order = {"prompt": tokens, "stream": True, "n_predict": 0, "id_slot": lease.number, "cache_prompt": lease.reuse}
                try:
                    await self._llama.complete(order, _ALWAYS, lambda _chunks: True)
                finally:
                    self._slots.give_back(lease, tokens)

    def _file(self) -> Path:
        if self._entry is None:
            path = self._place.base / Path(self._options.path or "").expanduser()
            if not path.is_file():
                raise OurFault(f"There is no model file {path}.")
            return path
        return self._entry.main(fetch.ensure(self._entry, self._place.weights, _once(self._place.notice)))

    async def _fitted(self, llama: Llama, ask: commands.Respond, held: Sequence[Offer]) -> list[int]:
        """The prompt's tokens; of the history, where that is allowed, as much of its end as leaves room for an answer."""
        tokens = await self._tokens(llama, ask, held, ask.history)
        room = min(ask.sampling.max_tokens or ROOM_TOKENS, llama.context // 4) if ask.truncate else 1
        limit = llama.context - room
        if ask.retain is not None and ask.retain.most_tokens is not None and ask.truncate:
            limit = min(limit, len(await self._tokens(llama, ask, held, ())) + ask.retain.most_tokens)
        if len(tokens) <= limit:
            return tokens
        groups = prompt.droppable(ask.history) if ask.truncate else []
        # Who drops more than is needed now has a prompt that begins as the last one did for a while to come.
        aim = int(limit * ask.retain.ratio) if ask.retain is not None else limit
        fewest, most, fitting = 1, len(groups), None
        while fewest <= most:
            drop = (fewest + most) // 2
            shorter = await self._tokens(llama, ask, held, prompt.without(ask.history, groups[:drop]))
            if len(shorter) <= (aim if drop < len(groups) else limit):
                fitting, most = shorter, drop - 1
            else:
                fewest = drop + 1
        if fitting is None:
            raise context_length_exceeded(llama.context, len(tokens))
        return fitting

    async def _tokens(self, llama: Llama, ask: commands.Respond, held: Sequence[Offer], history: Sequence[turns.Turn]) -> list[int]:
        said = prompt.conversation(ask, held, history)
        lead = OPEN if ask.tool_choice.mode == "required" else ""
        if self._template == "chatml":
            segments = prompt.chatml(said, lead)
        else:
            stencil = prompt.Stencil(said)
            segments = stencil.fill(await llama.apply_template(stencil.messages), lead)
        tokens: list[int] = []
        for number, segment in enumerate(segments):
            tokens += await llama.tokenise(segment, begins=number == 0)
        return tokens


def _once(notice: Callable[[str], None]) -> Report:
    """A report that says each stage once."""
    stages: set[str] = set()

    def report(stage: str, _done_bytes: int, total_bytes: int) -> None:
        if stage not in stages:
            stages.add(stage)
            notice(f"{stage} ({total_bytes / 1e6:.0f} MB)")

    return report


def _processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
