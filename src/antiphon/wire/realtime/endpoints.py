"""The bodies of the endpoints that create client secrets for Realtime sessions, in both dialects."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, structs

from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.structure import check_structure
from antiphon.wire.codec.types import Opt, Wire, encode
from antiphon.wire.realtime.base import RealtimeObject
from antiphon.wire.realtime.beta_shapes import FlatSession, check_beta_modalities, flatten, nest
from antiphon.wire.realtime.session import AnySession, Session, TranscriptionSession, check_session

EXPIRY_DEFAULT_S, BETA_EXPIRY_DEFAULT_S = 600, 60
"""Lifetimes of secrets (Realtime reference: `expires_after.seconds`; in the beta, `client_secret`: one minute)."""


class ExpiresAfter(RealtimeObject, kw_only=True):
    """When a secret expires: so many seconds after its creation."""

    anchor: Opt[Literal["created_at"]] = UNSET
    seconds: Opt[Annotated[int, Meta(ge=10, le=7200)]] = UNSET


class ClientSecretRequest(RealtimeObject, kw_only=True):
    """A request for a secret, and the settings that its sessions start with."""

    expires_after: Opt[ExpiresAfter] = UNSET
    session: Opt[AnySession] = UNSET


class ClientSecret(Wire, kw_only=True):
    """A secret, and the session that it opens; `expires_at` is in Unix seconds."""

    value: str
    expires_at: int
    session: AnySession


class BetaExpiry(RealtimeObject, kw_only=True):
    """When a secret of the beta expires."""

    expires_after: Opt[ExpiresAfter] = UNSET


class BetaSecret(Wire, kw_only=True):
    """A secret of the beta; `expires_at` is in Unix seconds."""

    value: str
    expires_at: int


class BetaSessionRequest(FlatSession, kw_only=True):
    """A request for a secret, in the form of the beta: the session's settings."""

    client_secret: Opt[BetaExpiry] = UNSET


class BetaSession(FlatSession, kw_only=True):
    """A session of the beta, with the secret that opens it."""

    client_secret: BetaSecret


_reader: Reader[ClientSecretRequest] = Reader(ClientSecretRequest)
_beta_reader: Reader[BetaSessionRequest] = Reader(BetaSessionRequest)


class SecretOptions(Wire, kw_only=True):
    """The session's settings and the secret's lifetime in seconds, in either dialect."""

    session: AnySession
    lasts_s: int


def decode_secret_request(body: bytes) -> SecretOptions:
    """
    Decode a request for a secret; an empty object asks for the defaults.

    Raises:
        ClientError: it is invalid; `param` says where.
    """
    check_structure(body)
    request = _reader.read(body)
    session = Session() if request.session is UNSET else request.session
    check_session(session)
    return SecretOptions(session=session, lasts_s=_expiry_s(request.expires_after, EXPIRY_DEFAULT_S))


def decode_beta_session_request(body: bytes) -> SecretOptions:
    """
    Decode a beta request for a session.

    Raises:
        ClientError: it is invalid; `param` says where.
    """
    flat = _decode_beta_request(body)
    check_beta_modalities(flat.modalities, "modalities")
    return _secret_options(flat, nest(flat, Session))


def decode_beta_transcription_request(body: bytes) -> SecretOptions:
    """
    Decode a beta request for a session that only transcribes.

    Raises:
        ClientError: it is invalid; `param` says where.
    """
    flat = _decode_beta_request(body)
    return _secret_options(flat, nest(flat, TranscriptionSession))


def _decode_beta_request(body: bytes) -> BetaSessionRequest:
    check_structure(body)
    return _beta_reader.read(body)


def _secret_options(flat: BetaSessionRequest, session: Session | TranscriptionSession) -> SecretOptions:
    expires_after = UNSET if flat.client_secret is UNSET else flat.client_secret.expires_after
    return SecretOptions(session=session, lasts_s=_expiry_s(expires_after, BETA_EXPIRY_DEFAULT_S))


def _expiry_s(expires_after: Opt[ExpiresAfter], default: int) -> int:
    return default if expires_after is UNSET or expires_after.seconds is UNSET else expires_after.seconds


def encode_secret(value: str, expires_at: int, session: AnySession) -> bytes:
    """JSON of a secret."""
    return encode(ClientSecret(value=value, expires_at=expires_at, session=session))


def encode_beta_session(value: str, expires_at: int, session: AnySession) -> bytes:
    """JSON of a session in the form of the beta, with its secret."""
    flat = structs.asdict(flatten(session, FlatSession))
    return encode(BetaSession(**flat | {"client_secret": BetaSecret(value=value, expires_at=expires_at)}))
