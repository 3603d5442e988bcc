"""
Names of modules that load slowly, or whose libraries are an extra; each module is loaded at the first use of its name.

Most servers use few of them: those of speech take 400 ms to load, aiohttp takes 90 ms. Use a name as `lazy.Cascade`;
`from … import Cascade` would load it at once. Source: PEP 562.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.embeddings.embedder import Embedder as Embedder
    from antiphon.engines.cascade.engine import Cascade as Cascade, CountSpeculation as CountSpeculation
    from antiphon.engines.cascade.parts import SpeechStack as SpeechStack
    from antiphon.engines.duplex.engine import DuplexAdapter as DuplexAdapter
    from antiphon.runtime.core.encrypted_content import ContentCipher as ContentCipher
    from antiphon.runtime.core.url_fetch import (
        FetchLimits as FetchLimits,
        PostFailure as PostFailure,
        address_guard as address_guard,
        fetcher as fetcher,
        page_fetcher as page_fetcher,
        post as post,
    )
    from antiphon.speech.audio_files.decode import AudioFiles as AudioFiles
    from antiphon.speech.dsp.noise import available_kinds as available_kinds
    from antiphon.speech.stt.moonshine import MoonshineTranscriber as MoonshineTranscriber
    from antiphon.speech.stt.openai import OpenAITranscriber as OpenAITranscriber, TranscriptionServer as TranscriptionServer
    from antiphon.speech.stt.whisper import WhisperTranscriber as WhisperTranscriber
    from antiphon.speech.tts.openai import OpenAISynthesizer as OpenAISynthesizer, SpeechServer as SpeechServer
    from antiphon.speech.turn_detection.smart_turn import SmartTurn as SmartTurn
    from antiphon.speech.turn_detection.vad import SileroVad as SileroVad
    from antiphon.tools.code_interpreter.containers import Containers as Containers
    from antiphon.tools.code_interpreter.start import start_code_interpreter as start_code_interpreter
    from antiphon.tools.file_search.tool import FileSearch as FileSearch
    from antiphon.tools.image_generation.pictures import MAX_PICTURE_BYTES as MAX_PICTURE_BYTES
    from antiphon.tools.image_generation.tool import ImageGeneration as ImageGeneration
    from antiphon.tools.mcp.remote import RemoteServers as RemoteServers
    from antiphon.tools.web_search.kind import WebSearchKind as WebSearchKind

_MODULES = {
    "AudioFiles": "antiphon.speech.audio_files.decode",
    "Cascade": "antiphon.engines.cascade.engine",
    "Containers": "antiphon.tools.code_interpreter.containers",
    "ContentCipher": "antiphon.runtime.core.encrypted_content",
    "CountSpeculation": "antiphon.engines.cascade.engine",
    "DuplexAdapter": "antiphon.engines.duplex.engine",
    "Embedder": "antiphon.embeddings.embedder",
    "FetchLimits": "antiphon.runtime.core.url_fetch",
    "FileSearch": "antiphon.tools.file_search.tool",
    "ImageGeneration": "antiphon.tools.image_generation.tool",
    "MAX_PICTURE_BYTES": "antiphon.tools.image_generation.pictures",
    "MoonshineTranscriber": "antiphon.speech.stt.moonshine",
    "OpenAISynthesizer": "antiphon.speech.tts.openai",
    "OpenAITranscriber": "antiphon.speech.stt.openai",
    "PostFailure": "antiphon.runtime.core.url_fetch",
    "RemoteServers": "antiphon.tools.mcp.remote",
    "SileroVad": "antiphon.speech.turn_detection.vad",
    "SmartTurn": "antiphon.speech.turn_detection.smart_turn",
    "SpeechServer": "antiphon.speech.tts.openai",
    "SpeechStack": "antiphon.engines.cascade.parts",
    "TranscriptionServer": "antiphon.speech.stt.openai",
    "WebSearchKind": "antiphon.tools.web_search.kind",
    "WhisperTranscriber": "antiphon.speech.stt.whisper",
    "address_guard": "antiphon.runtime.core.url_fetch",
    "available_kinds": "antiphon.speech.dsp.noise",
    "fetcher": "antiphon.runtime.core.url_fetch",
    "page_fetcher": "antiphon.runtime.core.url_fetch",
    "post": "antiphon.runtime.core.url_fetch",
    "start_code_interpreter": "antiphon.tools.code_interpreter.start",
}
"""By name, the module that defines it."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)
