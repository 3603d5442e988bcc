"""
Encrypted content: what the server gives its clients to keep, and only it can read, such as reasoning.

AES-256-GCM, which also proves that nothing was changed. The tenant, the purpose and the key's id are authenticated with
it, so that no other tenant's content opens, and none that was made for another purpose. Source: NIST SP 800-38D.
"""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from antiphon.errors import ServerError, invalid_encrypted_content
from antiphon.runtime.core.home_lock import folder_lock, write_private
from antiphon.wire.responses.items import MAX_ENCRYPTED_CHARACTERS

Purpose = Literal["reasoning", "compaction", "thinking", "background"]

PREFIX = "ap1."
"""What our content begins with: it tells it from that of upstream servers, and says how the rest is encrypted."""

KEY_BYTES, KEY_ID_BYTES, NONCE_BYTES = 32, 8, 12
_HEAD_BYTES = KEY_ID_BYTES + NONCE_BYTES

MAX_KEYS = 64
"""With so many keys, the oldest is dropped when a new one is made."""

KEY_FILE = "encryption.keys"


class ContentCipher:
    """
    Encrypts with the first of its keys, and decrypts with all of them.

    Args:
        home: of the server. The keys are a file there, which is made where it is missing, and read again when it has
            changed, as by another process.
        explicit_keys: keys in base64, with commas or white space between; none are read from the file then.

    Raises:
        ServerError: the keys can't be read or made.
    """

    def __init__(self, home: Path, explicit_keys: str | None = None) -> None:
        self._path = None if explicit_keys else home / KEY_FILE
        self._version: tuple[int, int, int] | None = None
        self._keys = _parse_keys(explicit_keys) if explicit_keys else {}
        self._refresh()

    def encrypt(self, content: bytes, tenant: str, purpose: Purpose) -> str | None:
        """The encrypted content, or None if it would be longer than a client may give back."""
        # The 64 bytes are room for the prefix, the head and GCM's tag of 16 bytes.
        if len(content) > MAX_ENCRYPTED_CHARACTERS // 4 * 3 - 64:
            return None
        self._refresh()
        key_id, key = next(iter(self._keys.items()))
        # A random nonce is safe for some four billion messages with one key (NIST SP 800-38D, 8.3).
        nonce = secrets.token_bytes(NONCE_BYTES)
        return PREFIX + _encode(key_id + nonce + key.encrypt(nonce, content, _associated_data(key_id, tenant, purpose)))

    def knows_key(self, encrypted_content: str) -> bool:
        """Whether content has the form of this server's, and its key is here."""
        self._refresh()
        token = _decode(encrypted_content)
        return token is not None and token[:KEY_ID_BYTES] in self._keys

    def decrypt(self, encrypted_content: str, tenant: str, purpose: Purpose, param: str) -> bytes:
        """
        The content.

        Args:
            param: path of the content in the request, for the error.

        Raises:
            ClientError: it was changed, was not made for that tenant and purpose, or its key is not here.
        """
        self._refresh()
        token = _decode(encrypted_content) or b""
        key_id, nonce, ciphertext = token[:KEY_ID_BYTES], token[KEY_ID_BYTES:_HEAD_BYTES], token[_HEAD_BYTES:]
        if (key := self._keys.get(key_id)) is None:
            raise invalid_encrypted_content(param)
        try:
            return key.decrypt(nonce, ciphertext, _associated_data(key_id, tenant, purpose))
        except (InvalidTag, ValueError):
            raise invalid_encrypted_content(param) from None

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            if self._version is None or _version(self._path) != self._version:
                _make_missing_key(self._path)
                self._version = _version(self._path)
                self._keys = _parse_keys(self._path.read_text(encoding="ascii"))
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable_keys(f"The encryption keys in {self._path} can't be used: {error}") from None


def rotate_keys(home: Path) -> int:
    """
    Make a new key, which encrypts from now on; the earlier ones go on decrypting.

    Returns:
        How many keys there are now.

    Raises:
        ServerError: the file can't be read or written.
    """
    path = home / KEY_FILE
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with folder_lock(home):
            keys = [_new_key(), *_read_lines(path)][:MAX_KEYS]
            _write_keys(path, keys)
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(f"The encryption keys in {path} can't be changed: {error}") from None
    return len(keys)


def _make_missing_key(path: Path) -> None:
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with folder_lock(path.parent):
        if not path.exists():  # another process may have made it
            _write_keys(path, [_new_key()])


def _write_keys(path: Path, keys: Sequence[str]) -> None:
    write_private(path, "".join(f"{key}\n" for key in keys).encode("ascii"))


def _read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="ascii").split() if path.exists() else []


def _version(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    # With the inode: the file is replaced as a whole, and two versions may have the same time and size.
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def _parse_keys(text: str) -> dict[bytes, AESGCM]:
    keys: dict[bytes, AESGCM] = {}
    for line in text.replace(",", " ").split():
        try:
            key = base64.b64decode(line, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise _unusable_keys(f"An encryption key is not {KEY_BYTES} bytes in base64, as `openssl rand -base64 {KEY_BYTES}` makes them.")
        keys[hashlib.sha256(b"antiphon encryption key\0" + key).digest()[:KEY_ID_BYTES]] = AESGCM(key)
    if not keys:
        raise _unusable_keys("There is no encryption key.")
    return keys


def _unusable_keys(operator_message: str) -> ServerError:
    structlog.get_logger().error("encryption_keys_unusable", message=operator_message)
    error = ServerError("The server's encryption keys can't be used. The operator finds the reason in the server's log.")
    error.operator_message = operator_message
    return error


def _associated_data(key_id: bytes, tenant: str, purpose: Purpose) -> bytes:
    return b"\0".join((PREFIX.encode(), key_id, purpose.encode(), tenant.encode()))


def _encode(token: bytes) -> str:
    return base64.urlsafe_b64encode(token).rstrip(b"=").decode()


def _decode(encrypted_content: str) -> bytes | None:
    """The bytes of content that has our form, or None."""
    text = encrypted_content.removeprefix(PREFIX)
    if text == encrypted_content or len(text) > MAX_ENCRYPTED_CHARACTERS:
        return None
    try:
        token = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    # RFC 4648, 3.5: decoders skip foreign characters, and bits at the end that stand for nothing.
    return token if _encode(token) == text else None
