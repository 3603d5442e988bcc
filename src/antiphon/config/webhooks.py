"""The settings of a webhook endpoint."""

import base64
import binascii
import re
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator, model_validator

from antiphon.config.settings import check_networks

SECRET_PREFIX = "whsec_"
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64
MAX_WEBHOOKS = 100

EventName = Literal["response.completed", "response.failed", "response.incomplete", "response.cancelled"]
"""The types of events, as the original names them."""

EVENTS: tuple[EventName, ...] = get_args(EventName)


class InvalidSecret(ValueError):
    """A text is no secret of a webhook. The message never contains the text, as it may be a secret with a mistake in it."""

    def __init__(self) -> None:
        super().__init__(
            f"expected secrets of the form `{SECRET_PREFIX}` and then {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes in Base64; "
            "`antiphon webhooks secret` makes one"
        )


def parse_secrets(text: str) -> tuple[bytes, ...]:
    """
    The keys in one or more secrets, separated by spaces or commas.

    Raises:
        InvalidSecret: one of them is none, or there is none.

    Source: Standard Webhooks, "Signature scheme": 24 to 64 random bytes, in Base64, behind `whsec_`.
    """
    return tuple(_parse_secret(secret) for secret in re.split(r"[\s,]+", text.strip()))


def _parse_secret(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidSecret from None
    if not secret.startswith(SECRET_PREFIX) or not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise InvalidSecret
    return key


class WebhookEntry(BaseModel, frozen=True, extra="forbid"):
    """A webhook endpoint: where to send which events of background responses."""

    name: str = Field(min_length=1, max_length=100, description="A name for it, in logs, metrics and commands.")
    url: str = Field(description="Where to send events.")
    secret: tuple[str, ...] = Field(default=(), description="The secret that signs; several while it is changed, the newest first.")
    secret_env: str | None = Field(default=None, min_length=1, description="The environment variable with the secret, or several.")
    events: tuple[EventName, ...] = Field(default=EVENTS, min_length=1, description="The events to send.")
    tenant: str | None = Field(default=None, description="The tenant whose responses it hears of; unset: every tenant's.")
    key: str | None = Field(default=None, min_length=1, description="The id of the key whose responses it hears of; unset: any key's.")
    networks: tuple[str, ...] = Field(default=(), description="Networks that the URL may lead to, besides the public internet.")
    timeout_s: float = Field(default=15, gt=0, le=60, description="Seconds that the endpoint has for its answer.")
    hours: float = Field(default=72, ge=0, le=720, description="Hours after which no further attempt is made.")
    pending: int = Field(default=10_000, ge=1, le=1_000_000, description="The most deliveries that wait; more are dropped.")

    @field_validator("secret", mode="before")
    @classmethod
    def _validate_secrets(cls, secrets: Any) -> tuple[str, ...]:
        texts = [secrets] if isinstance(secrets, str) else secrets
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise InvalidSecret
        for text in texts:
            parse_secrets(text)
        return tuple(texts)

    @field_validator("url")
    @classmethod
    def _validate_url(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ValueError("expected a URL such as 'https://example.com/webhooks'")
        if parts.username is not None or parts.password is not None:
            raise ValueError("a URL with a user or a password in it is not called; sign with `secret` instead")
        return url

    _validate_networks = field_validator("networks")(check_networks)

    @model_validator(mode="after")
    def _validate_one_secret(self) -> "WebhookEntry":
        if bool(self.secret) == (self.secret_env is not None):
            raise ValueError("needs either `secret` or `secret_env`")
        return self
