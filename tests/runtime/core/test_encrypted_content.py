"""Encrypted content: who can read it, who can't, and where its keys come from."""

import base64
import stat
import subprocess
import sys

import pytest

from antiphon.errors import ClientError, ServerError
from antiphon.runtime.core.encrypted_content import KEY_FILE, MAX_KEYS, ContentCipher, rotate_keys
from antiphon.wire.responses.items import MAX_ENCRYPTED_CHARACTERS
from support.programs import forks

TEXT = "Let me see. 你好 🙂".encode()
KEYS = [base64.b64encode(bytes([number]) * 32).decode() for number in range(3)]


def refused(cipher, content, tenant="t", purpose="reasoning"):
    with pytest.raises(ClientError) as refusal:
        cipher.decrypt(content, tenant, purpose, "input[0].encrypted_content")
    return (refusal.value.status, refusal.value.code, refusal.value.param) == (
        400,
        "invalid_encrypted_content",
        "input[0].encrypted_content",
    )


def test_content_comes_back_as_it_was_and_never_looks_the_same_twice(tmp_path):
    cipher = ContentCipher(tmp_path)
    first, second = (cipher.encrypt(TEXT, "t", "reasoning") for _ in range(2))
    assert first != second and b"Let me" not in base64.urlsafe_b64decode(first[4:] + "===")
    assert [cipher.decrypt(content, "t", "reasoning", "x") for content in (first, second)] == [TEXT, TEXT]


def test_no_single_character_can_be_changed_left_out_or_added(tmp_path):
    cipher = ContentCipher(tmp_path)
    content = cipher.encrypt(b"Hm.", "t", "reasoning")
    for position, character in enumerate(content):
        changed = content[:position] + ("A" if character != "A" else "B") + content[position + 1 :]
        shorter = content[:position] + content[position + 1 :]
        longer = content[:position] + "=" + content[position:]
        assert refused(cipher, changed) and refused(cipher, shorter) and refused(cipher, longer)
    assert refused(cipher, content + "\n") and refused(cipher, "") and refused(cipher, "ap1.") and refused(cipher, "gAAAA")


def test_another_tenant_or_purpose_reads_nothing(tmp_path):
    cipher = ContentCipher(tmp_path)
    content = cipher.encrypt(TEXT, "t", "reasoning")
    assert refused(cipher, content, tenant="u") and refused(cipher, content, tenant="") and refused(cipher, content, purpose="compaction")


def test_the_key_is_a_file_that_only_its_owner_reads_and_that_outlives_the_process(tmp_path):
    home = tmp_path / "new" / "home"
    content = ContentCipher(home).encrypt(TEXT, "t", "reasoning")
    assert stat.S_IMODE((home / KEY_FILE).stat().st_mode) == 0o600
    assert ContentCipher(home).decrypt(content, "t", "reasoning", "x") == TEXT


MAKE = """
import sys
from pathlib import Path
from antiphon.runtime.core.encrypted_content import ContentCipher
print(ContentCipher(Path(sys.argv[1])).encrypt(b"Hm.", "t", "reasoning"))
"""


def test_processes_that_begin_at_once_agree_on_one_key(tmp_path):
    processes = [forks.Popen([sys.executable, "-c", MAKE, tmp_path], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    contents = [process.communicate()[0].strip() for process in processes]
    assert len((tmp_path / KEY_FILE).read_text().split()) == 1
    assert [ContentCipher(tmp_path).decrypt(content, "t", "reasoning", "x") for content in contents] == [b"Hm."] * 4


def test_a_rotation_is_noticed_at_once_and_what_was_encrypted_before_stays_readable(tmp_path):
    running, other = ContentCipher(tmp_path), ContentCipher(tmp_path)
    before = running.encrypt(TEXT, "t", "reasoning")
    assert rotate_keys(tmp_path) == 2
    after = running.encrypt(TEXT, "t", "reasoning")
    assert before[4:14] != after[4:14], "another key"
    assert [other.decrypt(content, "t", "reasoning", "x") for content in (before, after)] == [TEXT, TEXT]
    keys = (tmp_path / KEY_FILE).read_text().split()
    (tmp_path / KEY_FILE).write_text(keys[0])
    assert running.decrypt(after, "t", "reasoning", "x") == TEXT and refused(running, before) and not running.knows_key(before)


def test_the_oldest_key_goes_when_there_are_too_many(tmp_path):
    assert [rotate_keys(tmp_path) for _ in range(MAX_KEYS + 1)] == [*range(1, MAX_KEYS + 1), MAX_KEYS]


def test_explicit_keys_are_shared_by_nodes_and_the_first_one_encrypts(tmp_path):
    old = ContentCipher(tmp_path, KEYS[1]).encrypt(TEXT, "t", "reasoning")
    node = ContentCipher(tmp_path / "a", f"{KEYS[0]}, {KEYS[1]}\n{KEYS[2]}\n")
    assert node.decrypt(old, "t", "reasoning", "x") == TEXT
    new = node.encrypt(TEXT, "t", "reasoning")
    assert ContentCipher(tmp_path / "b", KEYS[0]).decrypt(new, "t", "reasoning", "x") == TEXT
    assert refused(ContentCipher(tmp_path / "b", KEYS[1]), new)
    assert not (tmp_path / "a").exists() and not (tmp_path / KEY_FILE).exists()


@pytest.mark.parametrize("keys", ["secret", "c2hvcnQ=", f"{KEYS[0]},x"])
def test_keys_that_are_none_are_refused_without_showing_them(tmp_path, keys):
    with pytest.raises(ServerError) as refusal:
        ContentCipher(tmp_path, keys)
    assert "32 bytes in base64" in refusal.value.operator_message
    assert keys not in refusal.value.operator_message and str(tmp_path) not in refusal.value.message


def test_a_folder_that_cannot_be_used_is_named_to_the_operator_only(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ServerError) as refusal:
        ContentCipher(tmp_path / "file")
    assert str(tmp_path) in refusal.value.operator_message and str(tmp_path) not in refusal.value.message


def test_what_could_not_be_given_back_is_not_encrypted(tmp_path):
    cipher = ContentCipher(tmp_path)
    longest = cipher.encrypt(b"x" * (MAX_ENCRYPTED_CHARACTERS // 4 * 3 - 64), "t", "reasoning")
    assert len(longest) <= MAX_ENCRYPTED_CHARACTERS
    assert cipher.encrypt(b"x" * (MAX_ENCRYPTED_CHARACTERS // 4 * 3), "t", "reasoning") is None
