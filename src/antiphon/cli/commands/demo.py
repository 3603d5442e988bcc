"""`antiphon demo`."""

import asyncio
import json
import textwrap
import time
from base64 import b64encode
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter, validators

from antiphon import audio
from antiphon.cli.commands.ask import check_response, output_text
from antiphon.cli.common import server, settings, weights
from antiphon.cli.common.client import ApiClient, check_answer_status
from antiphon.cli.common.flags import ConfigFlag, ShellParameter
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.cli.common.terminal_svg import OutputRecorder, terminal_svg
from antiphon.cli.voice import audio as recordings
from antiphon.cli.voice.from_files import run_conversation
from antiphon.cli.voice.from_files_duplex import DuplexSessionInput, run_duplex_session
from antiphon.cli.voice.minicpmo_session import MinicpmoSessionOptions
from antiphon.cli.voice.realtime_session import AUDIO_UNSUPPORTED, RealtimeSessionOptions
from antiphon.cli.voice.render import Renderer, TerminalRenderer, format_queue_position
from antiphon.cli.voice.transcript import MODEL, DuplexTranscript, TextChunk
from antiphon.config.load import Config, ModelEntry
from antiphon.errors import ApiError, UpstreamError
from antiphon.runtime.speech import service
from antiphon.wire.codec.types import JsonDict
from antiphon.wire.minicpmo.media import RATE_IN_HZ
from antiphon.wire.minicpmo.server_events import ServerEvent, SessionCreated, SessionQueued

_WEATHER_TOOL: JsonDict = {
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
_CITY_SCHEMA: JsonDict = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 40},
        "country": {"type": "string", "maxLength": 40},
        "capital": {"type": "boolean"},
    },
    "required": ["city", "country", "capital"],
    "additionalProperties": False,
}

_PRICES_NAME = "prices.csv"
_PRICES = "item,price\n" + "".join(f"item {number},{number * number % 97 + 1}\n" for number in range(1, 41))
_CODE_QUESTION = "What is the sum of all prices in the file?"
_CODE_HINT = f"Import csv, and print sum() of float(row['price']) over csv.DictReader(open('/mnt/data/{_PRICES_NAME}'))."
_SANDBOX_S = 15.0
"""How long the server may take to try the sandbox for code."""

_MAX_OUTPUT_TOKENS = 300
"""Small models don't always find an end."""

_POOLED_MODEL, _POOLED_ANSWER_MS = "one-place", 1_500
"""A model for one session at a time, and how long its answers take: long enough for the server to estimate the wait."""

_POOLED_SESSION_S = 15.0
"""How long a chat may last in the demo: what the server takes a wait for, until somebody has been served."""

_PEOPLE = ("Ada", "Ben", "Cleo")
_CHUNK_MS = 200
_ARRIVAL_GAP_S = 0.05
"""Between people, so that they come in this order."""

_INSTRUCTIONS = "Answer in one short sentence."


_PartNumber = Annotated[int, Parameter(validator=validators.Number(gte=1, lte=9))]


def demo(
    *,
    only: Annotated[list[_PartNumber] | None, Parameter(show_default=False)] = None,
    svg: Path | None = None,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    See it work: real questions, real answers, and how fast.

    It starts a server on a free port, with the first configured model or the
    default one, and stops it afterwards. It keeps only the audio of one answer:
    antiphon-answer.wav, in the current folder.

    Try:
        antiphon demo
        antiphon demo --only 3 --only 6

    Args:
        only: show this part, by its number; may be given several times.
        svg: also draw the output as a picture of a terminal, to this file.
    """
    if svg is None:
        return _run_demo(only or (), file, shell)
    path = shell.cwd / svg
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{path} can't be written: it is a folder, or in none that exists.")
    recorder = OutputRecorder(shell.stdout)
    _run_demo(only or (), file, msgspec.structs.replace(shell, stdout=recorder))
    path.write_text(terminal_svg("antiphon demo", recorder.getvalue(), shell.columns), encoding="utf-8")
    return shell.note(f"the picture is in {svg}")


def _run_demo(only: Collection[int], file: Path | None, shell: Shell) -> None:
    config = _with_pooled_model(weights.with_optional_speech(settings.load(shell, file).config, shell))
    start_s = time.perf_counter()
    with server.background_server(config) as base_url:
        runner = _DemoRunner(ApiClient(base_url), shell, config)
        shell.say(f"{runner.model} answers at {base_url}, loaded in {time.perf_counter() - start_s:.1f} s.")
        for number, (title, show) in enumerate(_STEPS.items(), start=1):
            if only and number not in only:
                continue
            shell.say(f"\n{number}  {title}")
            show(runner)
    shell.say(f"\nAll of it works. To use it from your own programs: {shell.name} serve")


class _DemoRunner:
    """What every part of the demo uses: it asks the server, and prints who said what and how long it took."""

    def __init__(self, client: ApiClient, shell: Shell, config: Config) -> None:
        self.client = client
        self.shell = shell
        self.config = config
        self.model = client.first_model()

    def print_line(self, speaker: str, text: str) -> None:
        """Print what a speaker said; with an empty name, a remark."""
        self.shell.say(textwrap.fill(text, min(100, self.shell.columns), initial_indent=f"  {speaker:>6}  ", subsequent_indent=" " * 10))

    def ask(self, question: str | list[JsonDict], **more: object) -> JsonDict:
        """
        Send a question, and print the answer and how long it took.

        Args:
            more: further fields of the request.

        Raises:
            UpstreamError: the model failed.
        """
        start_s = time.perf_counter()
        body = {"model": self.model, "input": question, "max_output_tokens": _MAX_OUTPUT_TOKENS, **more}
        response = self.client.post("/v1/responses", body)
        took_s = time.perf_counter() - start_s
        check_response(response, self.shell)
        for item in response["output"]:
            if item["type"] == "code_interpreter_call":
                self.print_code(item)
        for call in function_calls(response):
            self.print_line("model", f"calls {call['name']}({call['arguments']})")
        if text := output_text(response):
            self.print_line("model", text)
        self.print_line("", f"{took_s:.2f} s, {response['usage']['output_tokens']} tokens")
        return response

    def print_code(self, item: JsonDict) -> None:
        """Print the code of a call, and what it printed."""
        for number, line in enumerate((item["code"] or "").strip().splitlines()):
            self.shell.say(f"  {'' if number else 'code':>6}  {line}")
        for output in item.get("outputs") or ():
            self.print_line("result", output.get("logs", "(a picture)").strip())


def function_calls(response: JsonDict) -> list[JsonDict]:
    """The function calls of a response."""
    return [item for item in response["output"] if item["type"] == "function_call"]


def _show_answer(runner: _DemoRunner) -> None:
    question = "What is the capital of France? Answer in one sentence."
    runner.print_line("you", question)
    runner.ask(question)


def _show_stream(runner: _DemoRunner) -> None:
    question = "Name the planets of the solar system, each with a few words about it."
    runner.print_line("you", question)
    start_s = time.perf_counter()
    arrivals_s: list[float] = []
    event: JsonDict = {}
    renderer = TerminalRenderer(runner.shell)
    for event in runner.client.stream("/v1/responses", {"model": runner.model, "input": question, "max_output_tokens": 120}):
        if event["type"] == "response.output_text.delta":
            arrivals_s.append(time.perf_counter() - start_s)
            renderer.show(TextChunk(MODEL, event["delta"]))
    renderer.end()
    if not arrivals_s or "response" not in event:
        raise UpstreamError("The stream broke off.")
    tokens = event["response"]["usage"]["output_tokens"]
    # The first token is not counted, as its wait is measured apart.
    rate = (tokens - 1) / max(arrivals_s[-1] - arrivals_s[0], 1e-9)
    runner.print_line("", f"first token after {arrivals_s[0]:.2f} s, then {rate:.{0 if rate >= 10 else 1}f} tokens a second")


def _show_tool(runner: _DemoRunner) -> None:
    question = "What is the weather in Lisbon right now?"
    runner.print_line("you", question)
    response = runner.ask(question, tools=[_WEATHER_TOOL], tool_choice="required")
    if not function_calls(response):
        raise UpstreamError("The model called no tool, though it had to.")
    result = json.dumps({"celsius": 21, "sky": "clear"})
    runner.print_line("tool", result)
    outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": result} for call in function_calls(response)]
    runner.ask(outputs, previous_response_id=response["id"], tools=[_WEATHER_TOOL], tool_choice="none")


def _show_code(runner: _DemoRunner) -> None:
    runner.print_line("you", f"{_CODE_QUESTION} (with {_PRICES_NAME}, a file of {len(_PRICES.splitlines()) - 1} rows)")
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    data = f"data:text/csv;base64,{b64encode(_PRICES.encode()).decode()}"
    file = {"type": "input_file", "filename": _PRICES_NAME, "file_data": data}
    message = {"role": "user", "content": [file, {"type": "input_text", "text": f"{_CODE_QUESTION} {_CODE_HINT}"}]}
    if not _has_code_interpreter(runner):
        runner.print_line("", "No code is run here: its sandbox does not work on this machine. `antiphon serve` says why when it starts.")
        return
    include = ["code_interpreter_call.outputs"]
    response = runner.ask(
        [message], tools=[tool], tool_choice={"type": "code_interpreter"}, include=include, max_tool_calls=3, temperature=0
    )
    calls = [item for item in response["output"] if item["type"] == "code_interpreter_call"]
    if not calls:
        raise UpstreamError("The model ran no code, though it had to.")
    runner.print_line("", f"{len(calls)} run in a sandbox without a network")


def _has_code_interpreter(runner: _DemoRunner) -> bool:
    """Whether the server runs code; it tries its sandbox when it starts, which takes a moment."""
    deadline = time.monotonic() + _SANDBOX_S
    while time.monotonic() < deadline:
        body = {"model": runner.model, "input": "Hi", "tools": [{"type": "code_interpreter", "container": "cntr_none"}]}
        try:
            runner.client.post("/v1/responses", {**body, "max_output_tokens": 16, "store": False})
        except ApiError as error:
            return error.status == 404  # it runs code, and has no container of that name
        time.sleep(0.5)
    return False


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


def _read_question(rate_hz: int) -> recordings.InputRecording:
    """The question that comes with antiphon, as a person asked it."""
    return recordings.read_recording(recordings.SAMPLE, rate_hz)


def _show_voice(runner: _DemoRunner) -> None:
    question = _read_question(recordings.RATE_HZ)
    options = RealtimeSessionOptions(model=runner.model, instructions=_INSTRUCTIONS)
    try:
        outcome = asyncio.run(run_conversation(runner.client, options, [question], TerminalRenderer(runner.shell)))
    except UpstreamError as error:
        if error.code != AUDIO_UNSUPPORTED:
            raise
        _print_no_speech(runner, error)
        return
    answer = outcome.turns[-1]
    check_answer_status(answer.status, answer.reason, runner.shell)
    _save_audio(runner, bytes(answer.pcm))


def _print_no_speech(runner: _DemoRunner, error: UpstreamError) -> None:
    reason = service.missing_reason(runner.config.speech, runner.config.models_dir) or error.message
    runner.print_line("", f"No conversation aloud here: {reason}")


def _show_duplex(runner: _DemoRunner) -> None:
    options = MinicpmoSessionOptions(model=runner.model, instructions=_INSTRUCTIONS)
    inputs = DuplexSessionInput(recordings=[_read_question(RATE_IN_HZ)], chunk_ms=_CHUNK_MS)
    try:
        asyncio.run(run_duplex_session(runner.client, options, inputs, TerminalRenderer(runner.shell)))
    except UpstreamError as error:
        if error.code != "model_not_found":
            raise
        _print_no_speech(runner, error)


def _show_queue(runner: _DemoRunner) -> None:
    options = MinicpmoSessionOptions(mode="chat", model=_POOLED_MODEL)
    inputs = DuplexSessionInput(recordings=[_read_question(RATE_IN_HZ)])

    async def visit(number: int, person: str) -> None:
        await asyncio.sleep(number * _ARRIVAL_GAP_S)
        await run_duplex_session(runner.client, options, inputs, _QueueRenderer(person, runner.print_line))
        runner.print_line(person, "is done")

    async def visit_all() -> None:
        await asyncio.gather(*(visit(number, person) for number, person in enumerate(_PEOPLE)))  # noqa: TID251 - a client's, and all end here

    asyncio.run(visit_all())


class _QueueRenderer(Renderer):
    """Shows a person's way through the queue; all get the same answer, which is not shown."""

    def __init__(self, person: str, print_line: Callable[[str, str], None]) -> None:
        self._person = person
        self._print_line = print_line
        self._last_line: str | None = None

    def show_state(self, event: ServerEvent, transcript: DuplexTranscript) -> None:
        match event:
            case SessionCreated():
                self._print_change("is served")
            case SessionQueued():
                self._print_change(format_queue_position(transcript.queue_positions[-1]))
            case _:
                pass

    def _print_change(self, line: str) -> None:
        if line != self._last_line:
            self._last_line = line
            self._print_line(self._person, line)


def _with_pooled_model(config: Config) -> Config:
    """`config` with one more model, which serves one session at a time."""
    options = {"answers": [{"lines": [{"wait_ms": _POOLED_ANSWER_MS}, {"text": "Thank you for waiting."}]}]}
    model = ModelEntry(name=_POOLED_MODEL, engine="scripted", sessions=1, options=options)
    limits = config.minicpmo.model_copy(update={"chat_s": _POOLED_SESSION_S})
    return config.model_copy(update={"models": (*config.models, model), "minicpmo": limits})


def _save_audio(runner: _DemoRunner, pcm: bytes) -> None:
    path = runner.shell.cwd / "antiphon-answer.wav"
    try:
        path.write_bytes(audio.wav_file(pcm, recordings.RATE_HZ))
    except OSError as error:
        runner.print_line("", f"its audio can't be saved: {error}")
    else:
        runner.print_line("", f"its audio is in {path.name}: {audio.duration_ms(len(pcm), recordings.RATE_HZ) / 1000:.1f} s")


_STEPS = {
    "An answer": _show_answer,
    "A stream": _show_stream,
    "A tool that your program runs": _show_tool,
    "An answer in the shape of a JSON Schema": _show_structured_output,
    "A conversation that the server remembers": _show_memory,
    "A question by voice": _show_voice,
    "The same in full duplex: audio goes both ways all the time": _show_duplex,
    "Three people, and a model that serves one at a time": _show_queue,
    "Code that the server runs, on a file of yours": _show_code,
}
