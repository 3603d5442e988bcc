"""
The embedded embedding model: MiniLM, in a thread of this process.

It takes requests for `POST /v1/embeddings` alone. `docs/reference/embeddings.md` describes every option.
"""

import asyncio
import base64
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from antiphon.embeddings.embedder import EmbeddedTexts, Embedder
from antiphon.engine_api import commands, events as engine_events
from antiphon.engine_api.capabilities import Capabilities
from antiphon.engine_api.engine import BuildContext, Deliver, EngineConversation
from antiphon.engine_api.model_options import convert_options
from antiphon.engine_api.options import ConversationSettings
from antiphon.errors import ApiError, ClientError, ServerError, only_embeds, shutting_down
from antiphon.offload import offload
from antiphon.open_conversations import OpenConversations
from antiphon.weights import catalogue, verify
from antiphon.wire.http.embeddings import Embedding, EmbeddingList, EmbeddingsRequest, EmbeddingsUsage, decode_texts

NUMBER_BYTES = 20
"""About how long a number of a vector is in JSON."""


class EmbeddingOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The settings of an embedding model.

    Attributes:
        model: its name in the catalogue; None for the default.
        path: a folder with a model of the same kind in its place: `model.safetensors` and `tokenizer.json`.
    """

    model: str | None = None
    path: str | None = None


def build(model: str, options: Mapping[str, Any], build_context: BuildContext) -> "EmbeddingEngine":
    """
    An engine for the model's table in the configuration.

    Raises:
        ServerError: an option is unknown or wrong, or names no model.
    """
    settings = convert_options(options, EmbeddingOptions, f"The options of model '{model}' are wrong: ", ())
    if settings.model and settings.path:
        raise ServerError(f"Model '{model}' has both 'model' and 'path'; give one.")
    if settings.path:
        return EmbeddingEngine(model, build_context.base_folder / Path(settings.path).expanduser())
    entry = catalogue.find(settings.model, "embedding") if settings.model else catalogue.embedding_model()
    return EmbeddingEngine(model, build_context.weights_folder / entry.name, entry)


class EmbeddingEngine:
    """
    An engine that makes vectors.

    Args:
        name: of the model, as clients know it.
        folder: of its files.
        entry: of the catalogue, by which they are verified; None for files of the operator's.
    """

    capabilities = Capabilities(answers=False, relays=("embeddings",))

    def __init__(self, name: str, folder: Path, entry: catalogue.CatalogueModel | None = None) -> None:
        self._name = name
        self._folder = folder
        self._entry = entry
        self._embedder = Embedder(folder)
        self._conversations = OpenConversations[_EmbeddingConversation]()

    async def start(self) -> None:
        """
        Verify and load the model.

        Raises:
            ServerError: its files are missing or damaged.
        """
        if self._entry is not None and (paths := await asyncio.to_thread(verify.altered_files, self._entry, self._folder)):
            raise ServerError(
                f"The files of the model '{self._entry.name}' are not there or damaged: {paths[0]}. "
                f"Run `antiphon models pull {self._entry.name}`.",
                code="weights_unavailable",
            )
        await self._embedder.start()

    async def stop(self) -> None:
        self._conversations.abort()
        await self._embedder.stop()

    def open(self, settings: ConversationSettings, deliver: Deliver) -> AbstractAsyncContextManager[EngineConversation]:
        return self._conversations.open(lambda tasks: _EmbeddingConversation(self._embedder, self._name, settings.model, deliver, tasks))


class _EmbeddingConversation:
    def __init__(self, embedder: Embedder, name: str, asked_name: str, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        self._embedder = embedder
        self._name = name
        self._asked_name = asked_name
        self._deliver: Deliver = deliver
        self._tasks = tasks
        self._requests: dict[str, asyncio.Task[None]] = {}

    def send(self, command: commands.EngineCommand) -> None:
        match command:
            case commands.Relay(id=id, path="embeddings"):
                task = self._requests[id] = self._tasks.create_task(self._answer(command))
                # A callback, as a task that is cancelled before its first step runs none of its own clean-up.
                task.add_done_callback(lambda task: self._on_done(id, task))
            case commands.Respond(id=id) | commands.Relay(id=id):
                self._fail(id, only_embeds(self._name))
            case commands.Cancel(id):
                if (canceled_task := self._requests.get(id)) is not None:
                    canceled_task.cancel()
            case _:
                pass  # its capabilities have nothing else

    def pause(self) -> None:
        """An answer is one event: there is nothing to stop."""

    def resume(self) -> None:
        """Nothing was stopped."""

    def abort(self) -> None:
        """Fail every request: the engine stops."""
        for id in tuple(self._requests):
            self._fail(id, shutting_down())
        self.close()

    def close(self) -> None:
        """Cancel every request, and deliver nothing more."""
        self._deliver = lambda _events: None
        for task in self._requests.values():
            task.cancel()

    def _fail(self, id: str, error: ApiError) -> None:
        self._deliver((engine_events.ResponseFailed.from_error(id, error),))

    def _on_done(self, id: str, task: asyncio.Task[None]) -> None:
        del self._requests[id]
        if task.cancelled():
            self._deliver((engine_events.ResponseEnded(id, "cancelled"),))

    async def _answer(self, relay: commands.Relay) -> None:
        try:
            request, texts = await offload(len(relay.body), decode_texts, relay.body)
            _check_dimensions(request, await self._embedder.dimensions())
            result = await self._embedder.embed_counted(texts)
            size_bytes = result.vectors.size * NUMBER_BYTES
            body = await offload(size_bytes, _encode, request, result, relay.model or request.model or self._asked_name)
        except ApiError as error:
            self._fail(relay.id, error)
            return
        usage = engine_events.Usage(id=relay.id, input_tokens=result.tokens, output_tokens=0)
        self._deliver((engine_events.RelayData(relay.id, body), usage, engine_events.ResponseEnded(relay.id, "stop")))


def _check_dimensions(request: EmbeddingsRequest, dimensions: int) -> None:
    if request.dimensions is not UNSET and request.dimensions != dimensions:
        raise ClientError(
            f"Invalid 'dimensions': this model's vectors have {dimensions} numbers, and can't be made shorter or longer.",
            code="invalid_value",
            param="dimensions",
        )


def _encode(request: EmbeddingsRequest, result: EmbeddedTexts, model: str) -> bytes:
    is_base64 = request.encoding_format == "base64"
    data = [
        Embedding(index=index, embedding=base64.b64encode(vector.astype("<f4").tobytes()).decode() if is_base64 else vector.tolist())
        for index, vector in enumerate(result.vectors)
    ]
    usage = EmbeddingsUsage(prompt_tokens=result.tokens, total_tokens=result.tokens)
    return msgspec.json.encode(EmbeddingList(data=data, model=model, usage=usage))
