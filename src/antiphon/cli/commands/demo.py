"""`antiphon demo`: the main job, done before your eyes."""

import asyncio
import json
import textwrap
import time
from importlib import resources
from typing import TYPE_CHECKING, Any

from antiphon import audio
from antiphon.cli.commands.ask import output_text
from antiphon.cli.common import server, settings, weights
from antiphon.cli.common.client import ApiClient
from antiphon.cli.common.flags import ConfigFlag, ShellParameter
from antiphon.cli.common.shell import Shell
from antiphon.cli.voice import audio as talk_sound
from antiphon.errors import UpstreamError

if TYPE_CHECKING:
    from antiphon.config.load import Config

_WEATHER_TOOL: dict[str, Any] = {
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
_CITY_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 40},
        "country": {"type": "string", "maxLength": 40},
        "capital": {"type": "boolean"},
    },
    "required": ["city", "country", "capital"],
    "additionalProperties": False,
}

_MAX_OUTPUT_TOKENS = 300
"""Of an answer; small models don't always find an end."""

_DUPLEX_HZ = 16_000
"""Of what is said in full duplex."""

_POOLED_MODEL, _POOLED_ANSWER_MS = "one-place", 1_500
"""A model that has one place, and how long an answer takes it: shorter ones would say nothing of how long people have to wait."""

_CARD_INSTRUCTIONS = "Repeat in one short sentence which playing card the user names."


def demo(*, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    See it work: real questions, real answers, and how fast.

    Starts a server of its own on a free port, with the first model configured
    or the default one, and stops it afterwards. Nothing is kept but the sound
    of one answer: antiphon-answer.wav, in the current folder.

    Try:
        antiphon demo
    """
    config = _with_pooled_model(weights.with_optional_speech(settings.load(shell, file).config, shell))
    began = time.perf_counter()
    with server.background_server(config) as base_url:
        stage = _DemoRunner(ApiClient(base_url), shell, config)
        shell.say(f"{stage.model} answers at {base_url}, loaded in {time.perf_counter() - began:.1f} s.")
        for number, (title, act) in enumerate(_STEPS.items(), start=1):
            shell.say(f"\n{number}  {title}")
            act(stage)
    shell.say(f"\nAll of it works. To have it for your own programs: {shell.name} serve")


class _DemoRunner:
    """Where the acts are played: asks the server, and prints who said what and how long it took."""

    def __init__(self, client: ApiClient, shell: Shell, config: "Config") -> None:
        self.client = client
        self.shell = shell
        self.config = config
        self.model = client.first_model()
        self.print = shell.say

    def print_line(self, speaker: str, text: str) -> None:
        """Print what somebody said, or, with nobody named, a remark."""
        self.print(textwrap.fill(text, min(100, self.shell.columns), initial_indent=f"  {speaker:>6}  ", subsequent_indent=" " * 10))

    def ask(self, question: Any, **more: Any) -> dict[str, Any]:
        """
        The response to a question; what the model said and how long it took are printed.

        Raises:
            UpstreamError: the model failed.
        """
        began = time.perf_counter()
        body = {"model": self.model, "input": question, "max_output_tokens": _MAX_OUTPUT_TOKENS, **more}
        response = self.client.post("/v1/responses", body)
        took_s = time.perf_counter() - began
        if response["status"] == "failed":
            raise UpstreamError(f"The model failed: {response['error']['message']}")
        for call in function_calls(response):
            self.print_line("model", f"calls {call['name']}({call['arguments']})")
        if text := output_text(response):
            self.print_line("model", text)
        self.print_line("", f"{took_s:.2f} s, {response['usage']['output_tokens']} tokens")
        return response


def function_calls(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The function calls of a response."""
    return [item for item in response["output"] if item["type"] == "function_call"]


def _show_answer(runner: _DemoRunner) -> None:
    question = "What is the capital of France? Answer in one sentence."
    runner.print_line("you", question)
    runner.ask(question)


def _show_stream(runner: _DemoRunner) -> None:
    from antiphon.cli.voice import render  # noqa: PLC0415 - its wire types load slowly
    from antiphon.cli.voice.transcript import MODEL, TextChunk  # noqa: PLC0415 - likewise

    question = "Name the planets of the solar system, each with a few words about it."
    runner.print_line("you", question)
    began = time.perf_counter()
    arrivals_s: list[float] = []
    event: dict[str, Any] = {}
    shown = render.TerminalTalkRenderer(runner.shell)
    for event in runner.client.stream("/v1/responses", {"model": runner.model, "input": question, "max_output_tokens": 120}):
        if event["type"] == "response.output_text.delta":
            arrivals_s.append(time.perf_counter() - began)
            shown.show(TextChunk(MODEL, event["delta"]))
    shown.end()
    if not arrivals_s or "response" not in event:
        raise UpstreamError("The stream broke off before its end.")
    tokens = event["response"]["usage"]["output_tokens"]
    rate = (tokens - 1) / max(arrivals_s[-1] - arrivals_s[0], 1e-9)
    runner.print_line("", f"first token after {arrivals_s[0]:.2f} s, then {rate:.{0 if rate >= 10 else 1}f} tokens a second")


def _show_tool(runner: _DemoRunner) -> None:
    question = "What is the weather in Lisbon right now?"
    runner.print_line("you", question)
    asked = runner.ask(question, tools=[_WEATHER_TOOL], tool_choice="required")
    if not function_calls(asked):
        raise UpstreamError("The model called no tool, though it had to.")
    result = json.dumps({"celsius": 21, "sky": "clear"})
    runner.print_line("tool", result)
    outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": result} for call in function_calls(asked)]
    runner.ask(outputs, previous_response_id=asked["id"], tools=[_WEATHER_TOOL], tool_choice="none")


def _show_structured_output(runner: _DemoRunner) -> None:
    question = "Describe the city of Rome."
    runner.print_line("you", f"{question} (as {', '.join(_CITY_SCHEMA['required'])})")
    shape = {"type": "json_schema", "name": "city", "schema": _CITY_SCHEMA, "strict": True}
    response = runner.ask(question, text={"format": shape})
    if sorted(json.loads(output_text(response))) != sorted(_CITY_SCHEMA["required"]):
        raise UpstreamError("The answer doesn't have the shape asked for.")


def _show_memory(runner: _DemoRunner) -> None:
    runner.print_line("you", "My name is Ada, and I like fugues.")
    first = runner.ask("My name is Ada, and I like fugues.")
    runner.print_line("you", "What is my name, and what do I like?")
    runner.ask("What is my name, and what do I like?", previous_response_id=first["id"])


def _read_question(rate_hz: int) -> talk_sound.InputRecording:
    """A person who names a card."""
    with resources.as_file(resources.files(__package__) / "card.wav") as path:
        return talk_sound.read_recording(path, rate_hz)


def _show_voice(runner: _DemoRunner) -> None:
    # Their wire types and their client load slowly.
    from antiphon.cli.voice import from_files, realtime_session, render  # noqa: PLC0415

    question = _read_question(talk_sound.RATE_HZ)
    asked = realtime_session.RealtimeSessionOptions(model=runner.model, instructions=_CARD_INSTRUCTIONS)
    try:
        outcome = asyncio.run(from_files.run_conversation(runner.client, asked, [question], render.TerminalTalkRenderer(runner.shell)))
    except UpstreamError as trouble:
        if trouble.code != realtime_session.AUDIO_UNSUPPORTED:
            raise
        _print_no_speech(runner, trouble)
        return
    answer = outcome.turns[-1]
    if answer.status == "failed":
        raise UpstreamError(f"The model failed: {answer.reason}")
    _save_audio(runner, bytes(answer.pcm))


def _print_no_speech(runner: _DemoRunner, error: UpstreamError) -> None:
    from antiphon.runtime.speech import service  # noqa: PLC0415 - the engines' contracts load slowly

    runner.print_line(
        "", f"It hears nothing here: {service.missing_reason(runner.config.speech, runner.config.models_dir) or error.message}"
    )


def _show_duplex(runner: _DemoRunner) -> None:
    from antiphon.cli.commands import demo_duplex  # noqa: PLC0415 - as above

    try:
        demo_duplex.show_duplex(runner.client, runner.model, _CARD_INSTRUCTIONS, _read_question(_DUPLEX_HZ), runner.shell)
    except UpstreamError as trouble:
        if trouble.code != "model_not_found":
            raise
        _print_no_speech(runner, trouble)


def _show_queue(runner: _DemoRunner) -> None:
    from antiphon.cli.commands import demo_duplex  # noqa: PLC0415 - as above

    demo_duplex.show_queue(runner.client, _POOLED_MODEL, _read_question(_DUPLEX_HZ), runner.print_line)


def _with_pooled_model(config: "Config") -> "Config":
    """`config` with one model more, which says the same to everybody and has one place."""
    from antiphon.config.load import ModelEntry  # noqa: PLC0415 - pydantic takes longer to load than `--help` takes altogether

    options = {"answers": [{"lines": [{"wait_ms": _POOLED_ANSWER_MS}, {"text": "Thank you for waiting."}]}]}
    return config.model_copy(
        update={"models": (*config.models, ModelEntry(name=_POOLED_MODEL, engine="scripted", sessions=1, options=options))}
    )


def _save_audio(runner: _DemoRunner, pcm: bytes) -> None:
    path = runner.shell.cwd / "antiphon-answer.wav"
    try:
        path.write_bytes(audio.wav_file(pcm, talk_sound.RATE_HZ))
    except OSError as trouble:
        runner.print_line("", f"its sound can't be kept: {trouble}")
    else:
        runner.print_line("", f"its sound is in {path.name}: {audio.duration_ms(len(pcm), talk_sound.RATE_HZ) / 1000:.1f} s")


_STEPS = {
    "An answer": _show_answer,
    "A stream": _show_stream,
    "A tool that your program runs": _show_tool,
    "An answer in the shape of a JSON Schema": _show_structured_output,
    "A conversation that the server remembers": _show_memory,
    "A question by voice": _show_voice,
    "The same in full duplex: sound goes both ways all the time": _show_duplex,
    "Three people, and a model with one place": _show_queue,
}
