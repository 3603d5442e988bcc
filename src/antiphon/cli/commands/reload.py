"""`antiphon reload`."""

from antiphon.cli.common import server
from antiphon.cli.common.flags import ConfigFlag, JsonFlag, ShellParameter, UrlFlag
from antiphon.errors import ClientError, UpstreamError
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.types import encode
from antiphon.wire.http.reload import ReloadReport


def reload(*, as_json: JsonFlag = False, url: UrlFlag = None, file: ConfigFlag = None, shell: ShellParameter) -> None:
    """
    Have a running server read its configuration again.

    Models, routes, rewrites, prompts and tools are added, changed and removed;
    what is under way is finished by the model that began it, with the tools that
    it has. The server reads the files that it was started with. With a mistake
    in them, it keeps what it has, and says where the mistake is.

    Try:
        antiphon reload
        antiphon reload --json
    """
    answer = server.find_server(shell, url, file).post("/reload", {})
    try:
        report = Reader[ReloadReport](ReloadReport).read(encode(answer))
    except ClientError as error:
        raise UpstreamError(f"The server's answer can't be read: {error.message}") from None
    if as_json:
        shell.say_json(report)
    else:
        shell.say("\n".join(_lines(report)) or "nothing has changed")
    if report.problems:
        raise UpstreamError("Not every model could be served as configured.")


def _lines(report: ReloadReport) -> list[str]:
    return [
        *(f"added    {name}" for name in report.added),
        *(f"changed  {name}" for name in report.changed),
        *(f"removed  {name}" for name in report.removed),
        *(f"set      {key}" for key in report.settings),
        *(f"restart  {key} is changed by a restart only" for key in report.restart),
        *(f"failed   {problem.name}: {problem.message}" for problem in report.problems),
    ]
