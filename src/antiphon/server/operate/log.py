"""`GET /log`: the last lines of the log, which are kept in memory."""

from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import invalid_value, shorten
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.operation import Operation, Parameter
from antiphon.server.http.paging import page_limit
from antiphon.server.operate.facts import FactsQuery, gather
from antiphon.server.transport.log_lines import LEVELS, MAX_LINES

DEFAULT_LINES = 200

MEDIA_TYPE = "application/x-ndjson"

_READ = Operation(
    "getLog",
    "Server",
    "Read the last lines of the log",
    errors={400: "A parameter is wrong; `param` names it."},
    query=[
        Parameter("limit", "The most lines.", {"type": "integer", "minimum": 1, "maximum": MAX_LINES, "default": DEFAULT_LINES}),
        Parameter("level", "The least level.", {"type": "string", "enum": [*LEVELS], "default": "debug"}),
        Parameter("event", "Only lines of this event, such as `request`.", {"type": "string"}),
        Parameter("request_id", "Only lines about this request.", {"type": "string"}),
    ],
    description="JSON lines, the newest last, without secrets.",
    media_types=(MEDIA_TYPE,),
)


def routes(service: Service) -> list[GuardedRoute]:
    """The route `/log`."""

    async def read(request: Request) -> Response:
        query = request.query_params
        level = query.get("level", LEVELS[0])
        if level not in LEVELS:
            raise invalid_value("level", shorten(level), LEVELS)
        limit = page_limit(query, DEFAULT_LINES, MAX_LINES)
        log_query = FactsQuery(("log",), {}, limit, LEVELS.index(level), query.get("event"), query.get("request_id"))
        parts = await gather(service, log_query)
        # Each process has sent as many as the limit; of all together only the last are wanted.
        lines = sorted((line for part in parts for line in part.log), key=lambda line: line.at)[-limit:]
        body = b"".join(line.json + b"\n" for line in lines)
        return Response(body, headers={"cache-control": "no-store"}, media_type=MEDIA_TYPE)

    return guarded_routes(service, [("GET", "/log", read, "admin", _READ)])
