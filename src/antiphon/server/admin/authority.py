"""`GET /ca.crt`: the authority of the server's certificates, for people who want their machine to trust it."""

import asyncio
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from antiphon.config.load import Config
from antiphon.errors import ClientError
from antiphon.runtime.service import Service
from antiphon.server.http.auth import GuardedRoute
from antiphon.server.http.operation import Operation

MEDIA_TYPE = "application/x-x509-ca-cert"
"""With this type a phone offers to install it."""

_CERTIFICATE = Operation(
    "getCertificateAuthority",
    "Server",
    "The authority of the server's certificates, as PEM",
    media_types=(MEDIA_TYPE,),
    errors={404: "The server makes no certificates."},
    description='With `server.tls = "auto"`. The file does not contain the private key.',
)


def routes(service: Service) -> list[GuardedRoute]:
    """The route `/ca.crt`."""

    async def authority(_request: Request) -> Response:
        return await answer_authority(service.config)

    return [GuardedRoute("/ca.crt", authority, service=service, access="public", operation=_CERTIFICATE)]


async def answer_authority(config: Config) -> Response:
    """
    The certificate of the authority.

    Raises:
        ClientError: there is none.
    """
    content = None if config.server.tls == "off" else await asyncio.to_thread(_read, config.ca_file)
    if content is None:
        raise ClientError("This server makes no certificates: see `server.tls`.", status=404, code="no_certificate_authority")
    # Names that are added to the configuration need another authority (record 0065), so a cached copy may be of no use.
    headers = {"content-disposition": 'attachment; filename="antiphon-ca.crt"', "cache-control": "no-cache"}
    return Response(content, headers=headers, media_type=MEDIA_TYPE)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
