"""
The tokens of a prompt, counted by the server that would read it, or else estimated; and truncation by that number.

vLLM counts a conversation itself (`/tokenize`, whose answer has the context window too). llama.cpp renders its template
(`/apply-template`), counts the text (`/tokenize`) and tells the context window (`/props`). Images, documents and audio
are never sent to be counted: they are estimated, and their URLs must not be fetched there.

Source: vLLM, `entrypoints/serve/tokenize/protocol.py`; llama.cpp, `tools/server/README.md`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.engine_api import commands
from antiphon.engine_api.token_estimate import BYTES_PER_TOKEN, estimate_input_tokens, media_tokens, separate_media
from antiphon.engine_api.truncation import History, drop_oldest, output_room
from antiphon.engines.chat.quirks import Quirks
from antiphon.engines.chat.request import chat_body
from antiphon.engines.upstream.client import UpstreamClient
from antiphon.engines.upstream.counting import CountingEndpoints
from antiphon.errors import context_length_exceeded
from antiphon.offload import offload

MARKUP_TOKENS = 64
"""More than any chat template writes around a message or a tool."""


class TokenCount(Struct, frozen=True):
    """
    How many tokens a prompt has.

    Attributes:
        window: the model's context window; None if unknown.
    """

    tokens: int
    window: int | None


class _VllmTokens(Struct):
    count: int
    max_model_len: int | None = None


class _RenderedTemplate(Struct):
    prompt: str


class _LlamaTokens(Struct):
    tokens: list[int]


class _LlamaSettings(Struct, frozen=True):
    n_ctx: int | None = None


class _LlamaProps(Struct):
    default_generation_settings: _LlamaSettings = _LlamaSettings()


class TokenCounter:
    """
    Counts the tokens of requests to one server.

    Args:
        window: the context window from the configuration, which goes before the server's own word.
    """

    def __init__(self, upstream: UpstreamClient, window: int | None) -> None:
        self._endpoints = CountingEndpoints(upstream)
        self._window = window
        self._server_windows: dict[str | None, int] = {}

    async def count(self, request: commands.Respond, model: str | None, quirks: Quirks) -> TokenCount:
        """The tokens of the request's prompt; without a model, as the server's own one counts them."""
        tokens = None
        if quirks.tokenizer is not None:
            tokens = await self._endpoints.attempt(lambda: self._count_exactly(request, model, quirks))
        if tokens is None:
            tokens = await offload(request.size_bytes, estimate_input_tokens, request)
        return TokenCount(tokens, self.window_of(model))

    async def truncate(self, request: commands.Respond, model: str, quirks: Quirks) -> commands.Respond:
        """
        The request with as much of the end of its history as fits the context window; unchanged if the window is
        unknown.

        Raises:
            ClientError: its newest turn alone is too long.
        """
        if await offload(request.size_bytes, self._surely_fits, request, model):
            return request
        count = await self.count(request, model, quirks)
        limit = _input_limit(request, count.window)
        if limit is None or count.tokens <= limit:
            return request

        async def measure(shorter: History) -> int:
            return (await self.count(msgspec.structs.replace(request, history=shorter), model, quirks)).tokens

        # Realtime reference, `retention_ratio`: dropping more than is needed now keeps the prompt's start for later.
        target = int(limit * request.retention.ratio) if request.retention is not None else limit
        fit = await drop_oldest(request.history, measure, lambda tokens: tokens, limit, target)
        if fit is None:
            raise context_length_exceeded(count.window or limit, count.tokens)
        return msgspec.structs.replace(request, history=fit[0])

    def _surely_fits(self, request: commands.Respond, model: str) -> bool:
        """Whether a request is so short that nothing needs to be counted: no token has less than a byte."""
        if (limit := _input_limit(request, self.window_of(model))) is None:
            return False
        markup_tokens = MARKUP_TOKENS * (len(request.history) + len(request.tools) + 1)
        return estimate_input_tokens(request) * BYTES_PER_TOKEN + markup_tokens <= limit

    def window_of(self, model: str | None) -> int | None:
        """The context window of a model; None while it is unknown."""
        return self._window or self._server_windows.get(model)

    async def _count_exactly(self, request: commands.Respond, model: str | None, quirks: Quirks) -> int:
        text_history, media = separate_media(request.history)
        text_request = msgspec.structs.replace(request, history=text_history)
        body = await offload(request.size_bytes, chat_body, text_request, model or "", quirks)
        fields: dict[str, Any] = {name: body[name] for name in ("messages", "tools", "chat_template_kwargs") if name in body}
        if model is not None:
            fields["model"] = model
        count = self._count_at_vllm if quirks.tokenizer == "vllm" else self._count_at_llamacpp
        return await count(fields, model, request.size_bytes) + media_tokens(media)

    async def _count_at_vllm(self, fields: Mapping[str, Any], model: str | None, size_bytes: int) -> int:
        body = {**fields, "add_generation_prompt": True}
        answer = await self._endpoints.ask("/tokenize", _VllmTokens, body, size_bytes=size_bytes, at_root=True)
        if answer.max_model_len:
            self._server_windows[model] = answer.max_model_len
        return answer.count

    async def _count_at_llamacpp(self, fields: Mapping[str, Any], model: str | None, size_bytes: int) -> int:
        if self.window_of(model) is None:
            props = await self._endpoints.ask("/props", _LlamaProps, at_root=True)
            if n_ctx := props.default_generation_settings.n_ctx:
                self._server_windows[model] = n_ctx
        template = await self._endpoints.ask("/apply-template", _RenderedTemplate, fields, size_bytes=size_bytes, at_root=True)
        text = {"content": template.prompt, "add_special": True, "parse_special": True}  # as its chat completions do
        return len((await self._endpoints.ask("/tokenize", _LlamaTokens, text, size_bytes=size_bytes, at_root=True)).tokens)


def _input_limit(request: commands.Respond, window: int | None) -> int | None:
    """The most tokens of input that a request may have; None if nothing limits them."""
    limits = [] if window is None else [window - output_room(request, window)]
    if request.retention is not None and request.retention.max_tokens is not None:
        # Realtime reference, `post_instructions`: it is a limit for what comes after instructions and tools.
        limits.append(estimate_input_tokens(msgspec.structs.replace(request, history=())) + request.retention.max_tokens)
    return min(limits, default=None)
