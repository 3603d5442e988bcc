"""What an engine can do, so that a protocol can refuse the rest by name before any work."""

from msgspec import Struct


class Capabilities(Struct, frozen=True, kw_only=True):
    """
    What an engine can do, so that a protocol can refuse the rest by name before any work.

    Attributes:
        context_window: tokens, or None if unknown.
        efforts: the values of reasoning effort that it distinguishes; empty for a model that doesn't reason.
        verbosities: the values of verbosity that it distinguishes.
        max_top_logprobs: alternatives per token; None if it reports no log probabilities.
        encrypts_reasoning: whether it can encrypt its reasoning itself (`EncryptedReasoning`), and reads it back so; what
            it does not encrypt, the protocol may.
        counts_tokens: whether it is a `CountingEngine`.
        compacts: whether it can put a summary in the place of a conversation itself, and reads it back as a
            `HostedToolItem`.
        hosted: the types of tools that it takes as `HostedTool`; it then also takes their items, as `HostedToolItem`.
        audio_in: whether it takes audio in the history, as `AudioPart` and `SpeechPart`.
        hears_speech: whether it understands speech directly, so that a `SpeechPart` needs no transcript, nor its
            `audio_out` a voice of ours.
        audio_out: whether it speaks if `Respond` has a `voice`.
        listens: whether it takes live audio (`AppendAudio` and the commands around it); the history then has
            `SpeechPart`s of its turns.
        turn_detection: the kinds of turn detection that it does while it listens.
        transcribes: whether it delivers transcripts of the input.
        noise_reduction: the kinds that it does.
        languages: the codes of those that it understands when spoken; empty for any.
        takes_prompt: whether a prompt or keywords help its transcription.
        voices: their names; empty if any name works.
        foresees: whether it acts on `Prepare`.
        full_duplex: whether it takes `StartDuplex` and the commands around it.
        sees: whether it uses `AppendImage` in full duplex.
        videos: whether it takes videos in the history, as `VideoPart`.
        clones: whether it can speak in the voice of a recording.
        answers: whether it takes a `Respond`; false for a model that makes vectors of texts and nothing else.
        relays: the paths that it takes a `Relay` for, such as `chat/completions`.
        sessions: how many conversations it can have at once; None for no limit.
        temperature_default: what is sampled with if the request sets none.
        top_p_default: the same for `top_p`.
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
    encrypts_reasoning: bool = False
    verbosities: tuple[str, ...] = ()
    context_window: int | None = None
    counts_tokens: bool = False
    compacts: bool = False
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
    answers: bool = True
    relays: tuple[str, ...] = ()
    sessions: int | None = None
