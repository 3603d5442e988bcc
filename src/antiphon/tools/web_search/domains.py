"""Domains that a search may use, or may not."""

import re
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from antiphon.errors import ClientError, shorten

MAX_DOMAINS = 100
"""In each list. Source: OpenAI's guide to web search."""

_DOMAIN = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


def parse_domains(domains: Sequence[str], param: str) -> tuple[str, ...]:
    """
    The domains in the form that `host_of` gives hosts: lower case, ASCII.

    Raises:
        ClientError: there are too many, or one is no domain.
    """
    if len(domains) > MAX_DOMAINS:
        raise ClientError(
            f"Invalid '{param}': array too long. Expected an array with maximum length {MAX_DOMAINS}, but got an array with length "
            f"{len(domains)} instead.",
            code="array_above_max_length",
            param=param,
        )
    return tuple(_parse_domain(domain, f"{param}[{place}]") for place, domain in enumerate(domains))


def _parse_domain(text: str, param: str) -> str:
    try:
        domain = text.strip().lower().removesuffix(".").encode("idna").decode() if len(text) <= 500 else ""
    except UnicodeError:
        domain = ""
    if not _DOMAIN.fullmatch(domain):
        raise ClientError(
            f"Invalid '{param}': expected a domain without scheme and path, such as 'example.com', but got '{shorten(text)}' instead.",
            code="invalid_value",
            param=param,
        )
    return domain


def host_of(url: str) -> str:
    """The host in a URL in the form in which it is compared; empty if there is none."""
    try:
        host = (urlsplit(url).hostname or "").removesuffix(".")
        return host.encode("idna").decode().lower() if not host.isascii() else host.lower()
    except ValueError:
        return ""


def is_in(host: str, domains: Iterable[str]) -> bool:
    """Whether a host is one of the domains, or a subdomain of one."""
    # With the dot: `badexample.com` only ends like `example.com`.
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


def refusal(url: str, allow: Sequence[str], block: Sequence[str]) -> str | None:
    """Why a URL may not be used, as the end of a sentence; None if it may be."""
    host = host_of(url)
    if not host:
        return "it is not a valid URL"
    if is_in(host, block):
        return "its domain is blocked in this request"
    if allow and not is_in(host, allow):
        return "its domain is not among those that this request allows"
    return None


def with_sites(text: str, allow: Sequence[str], block: Sequence[str], max_chars: int) -> str:
    """
    A query with `site:` operators, for search engines that have no other way to name domains.

    Those domains that don't fit into `max_chars` are left out, so results must be checked again.
    """
    text = text[:max_chars]
    # Allowed domains alone are enough: what is blocked among them is dropped when the results are checked.
    if allow:
        sites, room = [], max_chars - len(text) - 3
        for domain in allow:
            room -= len(domain) + len("site: OR ")
            if room < 0:
                break
            sites.append(f"site:{domain}")
        group = " OR ".join(sites)
        return f"{text} ({group})" if len(sites) > 1 else f"{text} {group}".rstrip()
    for domain in block:
        if len(text) + len(domain) + len(" -site:") > max_chars:
            break
        text = f"{text} -site:{domain}"
    return text
