"""
Signatures of webhooks.

Source: Standard Webhooks, "Webhook headers" and "Signature scheme".
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence

from antiphon.config.webhooks import SECRET_PREFIX

KEY_BYTES = 32


def new_secret() -> str:
    """A new random secret."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def signed_headers(keys: Sequence[bytes], delivery_id: str, at: int, body: bytes) -> Mapping[str, str]:
    """
    The headers of one attempt.

    Args:
        keys: while a secret is changed, both the new and the old one: a receiver accepts either signature.
        at: Unix seconds of this attempt; a receiver refuses what is more than some minutes old.
    """
    content = b"%s.%d.%s" % (delivery_id.encode(), at, body)
    signatures = [base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode() for key in keys]
    return {
        "content-type": "application/json",
        "webhook-id": delivery_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
