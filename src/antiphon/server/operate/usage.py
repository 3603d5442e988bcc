"""
`GET /usage`: how much each key, model and protocol was used, in buckets of an hour or a day.

The shape is that of OpenAI's `GET /v1/organization/usage/completions`.
"""

import re
import time
from collections.abc import Sequence
from itertools import groupby

from msgspec import Struct
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from antiphon.errors import ClientError, invalid_type, invalid_value, shorten
from antiphon.records import UsageRecord
from antiphon.runtime.service import Service
from antiphon.runtime.statistics.usage import UsageCounter
from antiphon.server.http.auth import GuardedRoute, guarded_routes
from antiphon.server.http.errors import json_response
from antiphon.server.http.operation import Operation, Parameter
from antiphon.server.http.paging import page_limit
from antiphon.stores.usage import HOUR_S, USAGE_GROUPS, UsageGroup
from antiphon.wire.codec.types import encode
from antiphon.wire.http.operate import UsageBucket, UsagePage, UsageResult

WIDTHS_S = {"1h": HOUR_S, "1d": 24 * HOUR_S}
DEFAULT_BUCKETS = {"1h": 24, "1d": 30}
MAX_BUCKETS = 366
"""The most buckets of a page. OpenAI's limits are 168 hours and 31 days, its defaults 24 and 7."""

MAX_RESULTS = 20_000
"""The most results of a page: one that would have more ends a bucket earlier."""

MAX_TIME_S = 2**40
"""Far beyond any date."""

_GROUPS: dict[str, UsageGroup] = {"key": "key_id", "model": "model", "protocol": "protocol"}

_TIME_SCHEMA = {"type": "integer", "minimum": 0, "maximum": MAX_TIME_S}
_GET = Operation(
    "getUsage",
    "Server",
    "Sum up who used what",
    UsagePage,
    errors={400: "A parameter is wrong; `param` names it."},
    query=[
        Parameter("start", "Unix seconds; by default so long before `end` that the buckets fit one page.", _TIME_SCHEMA),
        Parameter("end", "Unix seconds; by default now.", _TIME_SCHEMA),
        Parameter("bucket", "How long each bucket is.", {"type": "string", "enum": [*WIDTHS_S], "default": "1h"}),
        Parameter("group_by", "What to tell apart, with commas: `key`, `model`, `protocol`.", {"type": "string"}),
        Parameter(
            "limit",
            "The most buckets to return; by default 24 of an hour, 30 of a day.",
            {"type": "integer", "minimum": 1, "maximum": MAX_BUCKETS},
        ),
        Parameter("page", "`next_page` of the page before.", {"type": "string"}),
    ],
    description="A bucket of a day begins at midnight UTC. Numbers of other processes of this server may be five seconds late.",
)


class UsageQuery(Struct, frozen=True):
    """
    The times of one page, in Unix seconds and multiples of `width_s`.

    Attributes:
        last_end: the end of the last page.
    """

    start: int
    end: int
    last_end: int
    width_s: int
    groups: tuple[UsageGroup, ...]


def routes(service: Service) -> list[GuardedRoute]:
    """The route `/usage`."""

    async def usage(request: Request) -> Response:
        query = parse_query(request.query_params, time.time())
        return json_response(encode(await _page(service.usage, query)))

    return guarded_routes(service, [("GET", "/usage", usage, "admin", _GET)])


def parse_query(query: QueryParams, now: float) -> UsageQuery:
    """
    What a request asks for: the times of one page.

    Raises:
        ClientError: a parameter is wrong.
    """
    bucket = query.get("bucket", "1h")
    if bucket not in WIDTHS_S:
        raise invalid_value("bucket", shorten(bucket), WIDTHS_S)
    width_s = WIDTHS_S[bucket]
    # Start and end are widened to whole buckets, as the store adds up by the hour.
    limit = page_limit(query, DEFAULT_BUCKETS[bucket], MAX_BUCKETS)
    end = _end(query, now, width_s)
    start = _time(query, "start")
    start = max(0, end - limit * width_s) if start is None else start // width_s * width_s
    if start >= end:
        raise ClientError("Invalid 'start': it must be before 'end'.", code="invalid_value", param="start")
    # A page begins where the one before ended. All other parameters come again, and must agree with it.
    if (page := query.get("page")) is not None:
        start = _page_start(page, start, end, width_s)
    return UsageQuery(start, min(end, start + limit * width_s), end, width_s, _groups(query))


def _end(query: QueryParams, now: float, width_s: int) -> int:
    """The end of the last bucket, which is the one that `end` is in."""
    end = _time(query, "end")
    # A second more than now: the bucket under way is the last one also in its first second.
    return -(-(int(now) + 1 if end is None else end) // width_s) * width_s


def _time(query: QueryParams, name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,15}", text, re.ASCII):
        raise invalid_type(name, "an integer", f"'{shorten(text)}'")
    if int(text) > MAX_TIME_S:
        raise ClientError(f"Invalid '{name}': it is no Unix time in seconds.", code="invalid_value", param=name)
    return int(text)


def _page_start(page: str, start: int, end: int, width_s: int) -> int:
    match = re.fullmatch(r"page_(\d{1,13})", page, re.ASCII)
    if match is None or not start <= int(match[1]) < end or int(match[1]) % width_s:
        raise ClientError(f"Invalid 'page': '{shorten(page)}' is not the `next_page` of such a list.", code="invalid_value", param="page")
    return int(match[1])


def _groups(query: QueryParams) -> tuple[UsageGroup, ...]:
    # openai-python writes a list in a query with brackets, one parameter for each member.
    names = [name for text in (*query.getlist("group_by"), *query.getlist("group_by[]")) for name in text.split(",") if name]
    for name in names:
        if name not in _GROUPS:
            raise invalid_value("group_by", shorten(name), _GROUPS)
    return tuple(group for group in USAGE_GROUPS if group in {_GROUPS[name] for name in names})


async def _page(counter: UsageCounter, query: UsageQuery) -> UsagePage:
    records = await counter.total(query.start, query.end, query.width_s, query.groups, MAX_RESULTS + 1)
    end = query.end if len(records) <= MAX_RESULTS else records[-1].start  # the bucket that was cut comes with the next page
    if end == query.start:
        raise ClientError(
            f"One bucket has more than {MAX_RESULTS} results: group by less, or ask for buckets of an hour.",
            code="invalid_value",
            param="group_by",
        )
    data = _buckets([record for record in records if record.start < end], query.start, end, query.width_s)
    has_more = end < query.last_end
    return UsagePage(data=data, has_more=has_more, next_page=f"page_{end}" if has_more else None)


def _buckets(records: Sequence[UsageRecord], start: int, end: int, width_s: int) -> list[UsageBucket]:
    by_start = {at: [*rows] for at, rows in groupby(records, key=lambda record: record.start)}
    # Buckets without use are there too, as in the original.
    return [
        UsageBucket(start_time=at, end_time=at + width_s, results=[_result(record) for record in by_start.get(at, ())])
        for at in range(start, end, width_s)
    ]


def _result(record: UsageRecord) -> UsageResult:
    return UsageResult(
        key_id=record.key_id or None,
        model=record.model or None,
        protocol=record.protocol or None,
        requests=record.requests,
        errors=record.errors,
        refused=record.refusals,
        input_tokens=record.input_tokens,
        input_cached_tokens=record.input_cached_tokens,
        output_tokens=record.output_tokens,
        input_audio_s=record.input_audio_ms / 1000,
        output_audio_s=record.output_audio_ms / 1000,
    )
