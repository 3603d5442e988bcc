"""What an engine can do, so that a protocol can refuse the rest by name before any work."""

from msgspec import Struct


class Capabilities(Struct, frozen=True, kw_only=True):
    """
    What an engine can do, so that a protocol can refuse the rest by name before any work.

    Attributes:
        context_window: tokens, or None when it isn't known.
        efforts: the values of reasoning effort that it tells apart; empty for a model that doesn't reason.
        verbosities: likewise for verbosity.
        max_top_logprobs: the most alternatives per token; None when it reports no log probabilities.
        counts_tokens: whether it is a `CountingEngine`.
        hosted: the types of tools that it takes as `HostedTool`; it then also takes the items that they leave, as `HostedToolItem`.
        audio_in: whether it takes sound in the history, as `AudioPart` and `SpeechPart`.
        hears_speech: whether it answers what is said by the sound of it, so that a `SpeechPart` needs no words, nor its `audio_out`
            a voice of ours.
        audio_out: whether it answers aloud where `Respond` has a `voice`.
        listens: whether it takes live audio (`AppendAudio` and the commands around it); the history then has `SpeechPart`s of its turns.
        turn_detection: the kinds of turn detection that it does while it listens.
        transcribes: whether it tells what it heard.
        noise_reduction: the kinds that it does.
        languages: the codes of those that it understands when they are spoken; empty for any.
        takes_prompt: whether what it transcribes is the better for a prompt or keywords.
        voices: the names of those it has; empty where any name will do.
        foresees: whether it makes something of `Prepare`.
        full_duplex: whether it takes `StartDuplex`, and what goes with it.
        sees: whether in full duplex it makes something of `AppendImage`.
        videos: whether it takes films in the history, as `VideoPart`.
        clones: whether it speaks in the voice of a recording that it is given.
        sessions: how many conversations it can have at the same time; None for as many as come.
        temperature_default: what an answer is sampled with when nothing was asked; likewise `top_p_default`.
    """

    images: bool = False
    files: bool = False
    audio_in: bool = False
    tools: bool = False
    custom_tools: bool = False
    grammars: bool = False
    json_object: bool = False
    json_schema: bool = False
    truncation: bool = False
    temperature: bool = True
    top_p: bool = True
    temperature_default: float = 1.0
    top_p_default: float = 1.0
    penalties: bool = False
    max_top_logprobs: int | None = None
    efforts: tuple[str, ...] = ()
    summaries: bool = False
    verbosities: tuple[str, ...] = ()
    context_window: int | None = None
    counts_tokens: bool = False
    hosted: tuple[str, ...] = ()
    hears_speech: bool = False
    audio_out: bool = False
    listens: bool = False
    turn_detection: tuple[str, ...] = ()
    transcribes: bool = False
    noise_reduction: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    takes_prompt: bool = True
    voices: tuple[str, ...] = ()
    foresees: bool = False
    full_duplex: bool = False
    sees: bool = False
    videos: bool = False
    clones: bool = False
    sessions: int | None = None
