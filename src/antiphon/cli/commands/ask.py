"""`antiphon ask`."""

from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter

from antiphon.cli.common import server, weights
from antiphon.cli.common.client import check_answer_status
from antiphon.cli.common.flags import ConfigFlag, ShellParameter, UrlFlag
from antiphon.cli.common.shell import Shell, UsageError
from antiphon.errors import UpstreamError
from antiphon.wire.codec.types import JsonDict


def _refuse_option(_type: object, question: str) -> None:
    """Take `-` as a question; anything else that begins with a hyphen is a misspelt option."""
    if question.startswith("-") and question != "-":
        raise ValueError(f"There is no option {question}.")


def ask(
    question: Annotated[str, Parameter(allow_leading_hyphen=True, validator=_refuse_option)],
    /,
    *,
    model: str | None = None,
    instructions: str | None = None,
    stream: Annotated[bool | None, Parameter(negative="--no-stream")] = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    url: UrlFlag = None,
    file: ConfigFlag = None,
    shell: ShellParameter,
) -> None:
    """
    Ask a model a question.

    It asks the server that --url or OPENAI_BASE_URL names, or else the
    configured one. If that one does not run, a server starts for this question
    only. Standard output gets the answer and nothing else.

    Try:
        antiphon ask "What is a fugue?"
        git diff | antiphon ask - --instructions "Write a commit message for this."
        antiphon ask "Name three composers." --json

    Args:
        question: the question; `-` reads it from standard input.
        model: which model answers; by default the server's first.
        instructions: the system prompt.
        stream: print the answer as it arrives; on by default without --json.
        as_json: print the whole response as JSON; with --stream, one event on each line.
    """
    text = shell.stdin.read() if question == "-" else question
    if not text.strip():
        raise UsageError("There is no question.")
    with server.ensure_server(shell, url, file, weights.with_models) as client:
        body: JsonDict = {"model": model or client.first_model(), "input": text}
        if instructions is not None:
            body["instructions"] = instructions
        if stream if stream is not None else not as_json:
            _print_stream(client.stream("/v1/responses", body), shell, as_json)
        else:
            _print_response(client.post("/v1/responses", body), shell, as_json)


def _print_response(response: JsonDict, shell: Shell, as_json: bool) -> None:
    if as_json:
        shell.say_json(response)
    else:
        shell.say(output_text(response))
    check_response(response, shell)


def _print_stream(events: Iterable[JsonDict], shell: Shell, as_json: bool) -> None:
    last: JsonDict = {}
    try:
        for event in events:
            last = event
            if as_json:
                shell.say_json(event, indent=0)
            elif event["type"] in ("response.output_text.delta", "response.refusal.delta"):
                shell.say(event["delta"], end="")
    finally:  # what is said about a failure has a line of its own
        if last and not as_json:
            shell.say()
    if "response" not in last:
        raise UpstreamError("The answer broke off.")
    check_response(last["response"], shell)


def check_response(response: JsonDict, shell: Shell) -> None:
    """
    Say how a response ended, if it is not complete.

    Raises:
        UpstreamError: the model failed.
    """
    error, details = response.get("error") or {}, response.get("incomplete_details") or {}
    check_answer_status(response["status"], error.get("message") or details.get("reason"), shell)


def output_text(response: JsonDict) -> str:
    """The text of a response's messages, refusals included."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part.get("text") or part.get("refusal", "") for part in parts)
