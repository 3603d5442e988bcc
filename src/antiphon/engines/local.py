"""
The embedded engine: a small language model on this machine's processor, loaded by llama.cpp.

`docs/reference/engine-local.md` lists its options and what it can do.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import aiohttp
import msgspec
from msgspec import Meta, Struct

from antiphon import talk, turns
from antiphon.engines import prompt, sampling
from antiphon.engines.base import Conversation, Deliver, EngineOverrun, Place
from antiphon.engines.llama import Chosen, Chunk, Likely, Llama, Setup
from antiphon.engines.local_ahead import Ahead
from antiphon.engines.readers import ForcedReader, FormatReader, PlainReader, Reader, SniffingReader
from antiphon.engines.schemas import ANY_OBJECT, Schema, Unfit, invalid_schema
from antiphon.engines.slots import Slots
from antiphon.engines.toolcalls import OPEN, Offer, grammar, offers
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
        self.abilities = talk.Abilities(
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
    async def open(self, settings: talk.Settings, deliver: Deliver) -> AsyncIterator[Conversation]:
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

    async def count(self, ask: talk.Respond) -> int:
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

    async def answer(self, ask: talk.Respond, tenant: str, may_read: asyncio.Event, say: Deliver) -> list[talk.FromEngine]:
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

    async def foresee(self, ask: talk.Respond, tenant: str) -> None:
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

    async def _fitted(self, llama: Llama, ask: talk.Respond, held: Sequence[Offer]) -> list[int]:
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

    async def _tokens(self, llama: Llama, ask: talk.Respond, held: Sequence[Offer], history: Sequence[turns.Turn]) -> list[int]:
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


class _Conversation:
    def __init__(self, engine: Local, tenant: str, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self._engine = engine
        self._tenant = tenant
        self._deliver = deliver
        self._tasks = tasks
        self._answering: dict[str, asyncio.Task[None]] = {}
        self._foreseen: talk.Respond | None = None
        self._foreseeing: asyncio.Task[None] | None = None
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._hushed = False
        self._broken_off = False

    @property
    def answering(self) -> int:
        """How many answers are under way."""
        return len(self._answering)

    def tell(self, word: talk.ToEngine) -> None:
        match word:
            case talk.Respond(id=id):
                self._engine.admit()
                task = self._answering[id] = self._tasks.create_task(self._answer(word))
                task.add_done_callback(partial(self._over, id))
            case talk.Cancel(id) if id in self._answering:
                self._answering[id].cancel()
            case talk.Cancel():
                pass  # it ended before
            case talk.Foresee(ask):
                self._foresee(ask)
            case talk.Configure() | talk.Hear() | talk.Commit() | talk.Forget():
                pass  # its abilities say that it doesn't listen
            case talk.Converse() | talk.See() | talk.Listen():
                pass  # its abilities say that it does no full duplex

    def pause(self) -> None:
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    def hush(self) -> None:
        """Stop, and say nothing more."""
        self._hushed = True
        self.break_off()

    def break_off(self) -> list[asyncio.Task[None]]:
        """Stop what is being answered; returns what is still stopping."""
        self._broken_off = True
        tasks = list(self._answering.values())
        if self._foreseeing is not None:
            tasks.append(self._foreseeing)
        for task in tasks:
            task.cancel()
        return tasks

    def _foresee(self, ask: talk.Respond) -> None:
        if self._answering or self._broken_off or not self._engine.ahead.claims(self):
            return
        self._foreseen = ask
        if self._foreseeing is None or self._foreseeing.done():
            self._foreseeing = self._tasks.create_task(self._read_ahead())

    async def _read_ahead(self) -> None:
        ahead = self._engine.ahead
        while (ask := self._foreseen) is not None:
            await ahead.quiet()
            if ask is not self._foreseen:
                continue
            try:
                async with ahead.reading(self):
                    await self._engine.foresee(ask, self._tenant)
            except TimeoutError:
                continue  # somebody else is answered first
            if ask is self._foreseen:
                self._foreseen = None

    async def _answer(self, ask: talk.Respond) -> None:
        ahead, read = self._engine.ahead, self._foreseen
        is_known = read is not None and _goes_on(read, ask)
        with ahead.answering(self if is_known else None):
            if not ask.aside:
                self._foreseen = None
                ahead.gives_up(self)
            if is_known and self._foreseeing is not None and ahead.is_reading(self):
                await asyncio.wait([self._foreseeing])  # what it has read is most of what this one would have to
            await self._say_answer(ask)

    async def _say_answer(self, ask: talk.Respond) -> None:
        try:
            ending = await self._engine.answer(ask, self._tenant, self._may_read, self._deliver)
        except Fault as fault:
            ending = [_broke(ask.id, fault)]
        except (aiohttp.ClientError, ValueError, OSError) as error:
            ending = [_broke(ask.id, _failed(error))]
        # Nothing is awaited after this, so that a cancel can't come between the last word and the end.
        self._deliver(ending)

    def _over(self, id: str, task: asyncio.Task[None]) -> None:
        # Also where it was cancelled before its first step, which no `except` in it could see.
        self._answering.pop(id, None)
        if task.cancelled() and not self._hushed:
            stopped = _broke(id, OurFault("The server is stopping.", status=503))
            self._deliver([stopped if self._broken_off else talk.Ended(id, "cancelled")])


def _goes_on(read: talk.Respond, ask: talk.Respond) -> bool:
    """Whether what is asked begins as what was read."""
    past = read.history[:-1]
    return (read.instructions, read.tools, past) == (ask.instructions, ask.tools, ask.history[: len(past)])


class _Listener:
    """Turns what the native server sends into words, as it comes."""

    def __init__(self, ask: talk.Respond, reader: Reader, say: Deliver) -> None:
        self._ask = ask
        self._reader = reader
        self._say = say
        self._last = Chunk()
        self.tokens: list[int] = []

    def take(self, chunks: list[Chunk]) -> bool:
        """Say what arrived; False once nothing more is needed."""
        words: list[talk.FromEngine] = []
        for chunk in chunks:
            self._last = chunk
            self.tokens += chunk.tokens
            words += self._reader.read(chunk.content, self._logprobs(chunk.completion_probabilities))
        if words:
            self._say(words)
        return not self._reader.done

    def ending(self) -> list[talk.FromEngine]:
        """The words that end the answer."""
        last, cut = self._last, self._last.stop_type == "limit"
        used = talk.Used(
            id=self._ask.id,
            input_tokens=last.tokens_evaluated,
            output_tokens=last.tokens_predicted,
            cached_tokens=last.timings.cache_n if last.timings else 0,
        )
        return [*self._reader.finish(cut), used, talk.Ended(self._ask.id, "length" if cut else "stop")]

    def _logprobs(self, chosen: Sequence[Chosen]) -> list[talk.TokenLogprob]:
        if (wanted := self._ask.sampling.top_logprobs) is None:
            return []
        # The token that ends the answer, like every other that only steers, has no bytes: it is no part of the text.
        said = (one for one in chosen if one.bytes)
        return [talk.TokenLogprob(_likelihood(one), tuple(map(_likelihood, one.top_logprobs[:wanted]))) for one in said]


def _likelihood(one: Likely) -> talk.Likelihood:
    logprob = sampling.LOWEST_LOGPROB if one.logprob is None else max(one.logprob, sampling.LOWEST_LOGPROB)
    return talk.Likelihood(one.token, logprob, one.bytes)


def _held_to(ask: talk.Respond, held: Sequence[Offer]) -> tuple[Reader, dict[str, Any]]:
    """What reads the answer, and the constraint on it, as fields of the request."""
    rules: dict[str, Any] = {"timings_per_token": True} if held else {}
    if held and ask.tool_choice.mode == "required":
        return ForcedReader(ask.id, held), rules | {"grammar": grammar(None, held)}
    format, reader = _format(ask)
    if format is not None:
        rules["grammar"] = grammar(format, held)
    if held:
        return SniffingReader(ask.id, held, ask.parallel_tool_calls, reader), rules
    return reader, rules


def _format(ask: talk.Respond) -> tuple[Schema | None, PlainReader]:
    match ask.format:
        case None:
            return None, PlainReader(ask.id)
        case talk.JsonObject():
            return ANY_OBJECT, FormatReader(ask.id, ANY_OBJECT, strict=False)
        case talk.JsonSchema(name=name, schema=source, strict=strict):
            try:
                schema = Schema(source, strict)
            except Unfit as error:
                raise invalid_schema(error, f"response_format '{name}'", "invalid_json_schema", "text.format.schema") from None
            return schema, FormatReader(ask.id, schema, strict)


def _failed(error: Exception) -> OurFault:
    return OurFault(f"The local model's server failed: {error}.")


def _broke(id: str, fault: Fault) -> talk.Broke:
    broke = talk.Broke.by(id, fault)
    return broke if broke.code or broke.status < 500 else msgspec.structs.replace(broke, code="server_error")


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
