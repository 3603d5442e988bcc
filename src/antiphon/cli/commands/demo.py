"""`antiphon demo`: the main job, done before your eyes."""

import asyncio
import json
import textwrap
import time
from importlib import resources
from typing import TYPE_CHECKING, Any

from antiphon import audio
from antiphon.cli.commands.ask import spoken
from antiphon.cli.common import server as own, settings, weights as fetching
from antiphon.cli.common.client import Client
from antiphon.cli.common.flags import Around, ConfigFile
from antiphon.cli.common.shell import Shell
from antiphon.cli.voice import audio as talk_sound
from antiphon.errors import UpstreamTrouble

if TYPE_CHECKING:
    from antiphon.config.load import Config

_WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city right now.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
_CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 40},
        "country": {"type": "string", "maxLength": 40},
        "capital": {"type": "boolean"},
    },
    "required": ["city", "country", "capital"],
    "additionalProperties": False,
}

_MOST_TOKENS = 300
"""Of an answer; small models don't always find an end."""

_DUPLEX_HZ = 16_000
"""Of what is said in full duplex."""

_SCARCE, _SCARCE_MS = "one-place", 1_500
"""A model that has one place, and how long an answer takes it: shorter ones would say nothing of how long people have to wait."""

_CARD = "Repeat in one short sentence which playing card the user names."


def demo(*, file: ConfigFile = None, shell: Around) -> None:
    """
    See it work: real questions, real answers, and how fast.

    Starts a server of its own on a free port, with the first model configured
    or the default one, and stops it afterwards. Nothing is kept but the sound
    of one answer: antiphon-answer.wav, in the current folder.

    Try:
        antiphon demo
    """
    config = _with_scarce(fetching.with_voice(settings.load(shell, file).config, shell))
    began = time.perf_counter()
    with own.server(config) as base_url:
        stage = _Stage(Client(base_url), shell, config)
        shell.say(f"{stage.model} answers at {base_url}, loaded in {time.perf_counter() - began:.1f} s.")
        for number, (title, act) in enumerate(_ACTS.items(), start=1):
            shell.say(f"\n{number}  {title}")
            act(stage)
    shell.say(f"\nAll of it works. To have it for your own programs: {shell.name} serve")


class _Stage:
    """Where the acts are played: asks the server, and prints who said what and how long it took."""

    def __init__(self, client: Client, shell: Shell, config: "Config") -> None:
        self.client = client
        self.shell = shell
        self.config = config
        self.model = client.first_model()
        self.print = shell.say

    def line(self, who: str, text: str) -> None:
        """Print what somebody said, or, with nobody named, a remark."""
        self.print(textwrap.fill(text, min(100, self.shell.columns), initial_indent=f"  {who:>6}  ", subsequent_indent=" " * 10))

    def ask(self, question: Any, **more: Any) -> dict[str, Any]:
        """
        The response to a question; what the model said and how long it took are printed.

        Raises:
            UpstreamTrouble: the model failed.
        """
        began = time.perf_counter()
        body = {"model": self.model, "input": question, "max_output_tokens": _MOST_TOKENS, **more}
        response = self.client.post("/v1/responses", body)
        took_s = time.perf_counter() - began
        if response["status"] == "failed":
            raise UpstreamTrouble(f"The model failed: {response['error']['message']}")
        for call in calls(response):
            self.line("model", f"calls {call['name']}({call['arguments']})")
        if text := spoken(response):
            self.line("model", text)
        self.line("", f"{took_s:.2f} s, {response['usage']['output_tokens']} tokens")
        return response


def calls(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The function calls of a response."""
    return [item for item in response["output"] if item["type"] == "function_call"]


def _answer(stage: _Stage) -> None:
    question = "What is the capital of France? Answer in one sentence."
    stage.line("you", question)
    stage.ask(question)


def _stream(stage: _Stage) -> None:
    from antiphon.cli.voice import render as talk_stage  # noqa: PLC0415 - its wire types load slowly
    from antiphon.cli.voice.transcript import MODEL, Words  # noqa: PLC0415 - likewise

    question = "Name the planets of the solar system, each with a few words about it."
    stage.line("you", question)
    began = time.perf_counter()
    arrivals_s: list[float] = []
    event: dict[str, Any] = {}
    shown = talk_stage.Stage(stage.shell)
    for event in stage.client.stream("/v1/responses", {"model": stage.model, "input": question, "max_output_tokens": 120}):
        if event["type"] == "response.output_text.delta":
            arrivals_s.append(time.perf_counter() - began)
            shown.show(Words(MODEL, event["delta"]))
    shown.end()
    if not arrivals_s or "response" not in event:
        raise UpstreamTrouble("The stream broke off before its end.")
    tokens = event["response"]["usage"]["output_tokens"]
    rate = (tokens - 1) / max(arrivals_s[-1] - arrivals_s[0], 1e-9)
    stage.line("", f"first token after {arrivals_s[0]:.2f} s, then {rate:.{0 if rate >= 10 else 1}f} tokens a second")


def _tool(stage: _Stage) -> None:
    question = "What is the weather in Lisbon right now?"
    stage.line("you", question)
    asked = stage.ask(question, tools=[_WEATHER], tool_choice="required")
    if not calls(asked):
        raise UpstreamTrouble("The model called no tool, though it had to.")
    result = json.dumps({"celsius": 21, "sky": "clear"})
    stage.line("tool", result)
    outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": result} for call in calls(asked)]
    stage.ask(outputs, previous_response_id=asked["id"], tools=[_WEATHER], tool_choice="none")


def _structure(stage: _Stage) -> None:
    question = "Describe the city of Rome."
    stage.line("you", f"{question} (as {', '.join(_CITY['required'])})")
    shape = {"type": "json_schema", "name": "city", "schema": _CITY, "strict": True}
    response = stage.ask(question, text={"format": shape})
    if sorted(json.loads(spoken(response))) != sorted(_CITY["required"]):
        raise UpstreamTrouble("The answer doesn't have the shape asked for.")


def _memory(stage: _Stage) -> None:
    stage.line("you", "My name is Ada, and I like fugues.")
    first = stage.ask("My name is Ada, and I like fugues.")
    stage.line("you", "What is my name, and what do I like?")
    stage.ask("What is my name, and what do I like?", previous_response_id=first["id"])


def _question(rate_hz: int) -> talk_sound.Recording:
    """A person who names a card."""
    with resources.as_file(resources.files(__package__) / "card.wav") as path:
        return talk_sound.read(path, rate_hz)


def _voice(stage: _Stage) -> None:
    # Their wire types and their client load slowly.
    from antiphon.cli.voice import from_files as talk_files, realtime_session as talk_line, render as talk_stage  # noqa: PLC0415

    question = _question(talk_sound.RATE_HZ)
    asked = talk_line.Asked(model=stage.model, instructions=_CARD)
    try:
        outcome = asyncio.run(talk_files.held(stage.client, asked, [question], talk_stage.Stage(stage.shell)))
    except UpstreamTrouble as trouble:
        if trouble.code != talk_line.HEARS_NOTHING:
            raise
        _hears_nothing(stage, trouble)
        return
    answer = outcome.turns[-1]
    if answer.status == "failed":
        raise UpstreamTrouble(f"The model failed: {answer.reason}")
    _keep(stage, bytes(answer.sound))


def _hears_nothing(stage: _Stage, trouble: UpstreamTrouble) -> None:
    from antiphon.runtime.speech import service as speech  # noqa: PLC0415 - the engines' contracts load slowly

    stage.line("", f"It hears nothing here: {speech.missing(stage.config.speech, stage.config.models_dir) or trouble.message}")


def _duplex(stage: _Stage) -> None:
    from antiphon.cli.commands import demo_duplex  # noqa: PLC0415 - as above

    try:
        demo_duplex.converse(stage.client, stage.model, _CARD, _question(_DUPLEX_HZ), stage.shell)
    except UpstreamTrouble as trouble:
        if trouble.code != "model_not_found":
            raise
        _hears_nothing(stage, trouble)


def _queue(stage: _Stage) -> None:
    from antiphon.cli.commands import demo_duplex  # noqa: PLC0415 - as above

    demo_duplex.queue(stage.client, _SCARCE, _question(_DUPLEX_HZ), stage.line)


def _with_scarce(config: "Config") -> "Config":
    """`config` with one model more, which says the same to everybody and has one place."""
    from antiphon.config.load import ModelEntry  # noqa: PLC0415 - pydantic takes longer to load than `--help` takes altogether

    options = {"answers": [{"lines": [{"wait_ms": _SCARCE_MS}, {"text": "Thank you for waiting."}]}]}
    return config.model_copy(update={"models": (*config.models, ModelEntry(name=_SCARCE, engine="scripted", sessions=1, options=options))})


def _keep(stage: _Stage, sound: bytes) -> None:
    path = stage.shell.cwd / "antiphon-answer.wav"
    try:
        path.write_bytes(audio.wav(sound, talk_sound.RATE_HZ))
    except OSError as trouble:
        stage.line("", f"its sound can't be kept: {trouble}")
    else:
        stage.line("", f"its sound is in {path.name}: {audio.ms_of(len(sound), talk_sound.RATE_HZ) / 1000:.1f} s")


_ACTS = {
    "An answer": _answer,
    "A stream": _stream,
    "A tool that your program runs": _tool,
    "An answer in the shape of a JSON Schema": _structure,
    "A conversation that the server remembers": _memory,
    "A question by voice": _voice,
    "The same in full duplex: sound goes both ways all the time": _duplex,
    "Three people, and a model with one place": _queue,
}
