"""A live conversation: items in order, how long they sound, how much of them is remembered, and what a model is given of them."""

import pytest
from hypothesis import given, strategies as st

from antiphon.engine_api import events, history
from antiphon.errors import ClientError
from antiphon.protocols.realtime.conversation import (
    AUDIO_LIMIT_BYTES,
    ConversationEntry,
    ConversationItems,
    ItemAudio,
    engine_history,
    text_token_counts,
)
from antiphon.wire.realtime.items import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputAudio,
    InputText,
    McpCallItem,
    McpListToolsItem,
    MessageItem,
    OutputAudio,
    OutputText,
)


def message(id, *content, role="user"):
    return MessageItem(id=id, role=role, content=list(content))


def wrote(id):
    return ConversationEntry(message(id, InputText(text=id)))


def holding(*ids):
    conversation = ConversationItems()
    for id in ids:
        conversation.add(wrote(id))
    return conversation


def order(conversation):
    return [entry.item.id for entry in conversation]


def text(words, role="user"):
    return history.Message(role, (history.TextPart(words),))


@pytest.mark.parametrize(("previous", "behind", "then"), [(None, "b", "abc"), ("root", None, "cab"), ("a", "a", "acb"), ("b", "b", "abc")])
def test_an_item_stands_behind_the_one_that_was_named(previous, behind, then):
    conversation = holding("a", "b")
    assert conversation.add(wrote("c"), previous) == behind
    assert order(conversation) == list(then)
    assert conversation.previous_id("c") == behind


@pytest.mark.parametrize(
    ("id", "previous", "code"),
    [
        ("a", None, "item_create_duplicate_item_id"),
        ("b", "x", "item_create_invalid_previous_item_id"),
        ("root", None, "invalid_value"),
    ],
)
def test_an_item_that_can_not_stand_there_is_not_added(id, previous, code):
    conversation = holding("a")
    with pytest.raises(ClientError) as raised:
        conversation.add(wrote(id), previous)
    assert raised.value.code == code
    assert order(conversation) == ["a"]


def test_what_is_deleted_is_gone_and_its_place_closes():
    conversation = holding("a", "b", "c")
    conversation.delete("b")
    assert order(conversation) == ["a", "c"]
    assert conversation.previous_id("c") == "a"
    assert "b" not in conversation
    with pytest.raises(ClientError) as raised:
        conversation.delete("b")
    assert raised.value.code == "item_delete_invalid_item_id"


ids = st.sampled_from("abcdef")


@given(st.lists(st.tuples(st.sampled_from(["add", "delete"]), ids, st.none() | st.just("root") | ids)))
def test_items_stand_where_a_plain_list_has_them(script):
    conversation, plain = ConversationItems(), []
    for action, id, previous in script:
        try:
            if action == "delete":
                conversation.delete(id)
                plain.remove(id)
            else:
                conversation.add(wrote(id), previous)
                plain.insert(len(plain) if previous is None else 0 if previous == "root" else plain.index(previous) + 1, id)
        except ClientError:
            can_be_added = id not in plain and previous in (None, "root", *plain)
            assert not (id in plain if action == "delete" else can_be_added)
        assert order(conversation) == plain
        assert conversation.last_id == (plain[-1] if plain else None)


# Sound


def test_the_words_that_were_heard_are_those_that_began_before_the_cut():
    recording = ItemAudio(24_000)
    for word in ("one ", "two ", "three"):
        recording.transcript_chunks.append((recording.length_bytes, word))
        recording.append(bytes(4_800))
    assert (recording.heard_transcript(), recording.length_ms) == ("one two three", 300)
    recording.truncate(150)
    assert (recording.heard_transcript(), recording.length_ms, len(recording.pcm)) == ("one two ", 150, 7_200)
    recording.truncate(0)
    assert (recording.heard_transcript(), recording.length_ms, len(recording.pcm)) == ("", 0, 0)


def test_sound_that_comes_after_the_cut_is_counted_and_not_kept():
    recording = ItemAudio(24_000)
    recording.append(bytes(4_800))
    recording.truncate(50)
    recording.append(bytes(4_800))
    assert (recording.length_bytes, len(recording.pcm), recording.length_ms) == (9_600, 2_400, 50)


def test_the_oldest_sound_is_forgotten_first_and_its_length_and_words_are_not():
    conversation = ConversationItems()
    recordings = [ItemAudio(24_000, bytes(AUDIO_LIMIT_BYTES // 2), AUDIO_LIMIT_BYTES // 2, None, "said") for _ in range(3)]
    for number, recording in enumerate(recordings):
        conversation.add(ConversationEntry(message(str(number), InputAudio(transcript="said")), {0: recording}))
    assert [bool(recording.pcm) for recording in recordings] == [False, True, True]
    assert recordings[0].length_ms == recordings[1].length_ms
    first, *others = engine_history(conversation, with_audio=True)
    assert first == text("said")
    assert all(isinstance(other.parts[0], history.SpeechPart) for other in others)


# What a model is given


def test_a_model_that_hears_is_given_sound_and_one_that_does_not_the_words():
    spoken = ConversationEntry(message("a", InputAudio(transcript=None)), {0: ItemAudio(8_000, b"\0\0", 2, "t1", "Hi")})
    assert engine_history([spoken], with_audio=True) == (history.Message("user", (history.SpeechPart(b"\0\0", 8_000, "t1", "Hi"),)),)
    assert engine_history([spoken], with_audio=False) == (text("Hi"),)


def test_what_nobody_wrote_down_is_nothing_to_a_model_that_can_not_hear():
    spoken = ConversationEntry(message("a", InputAudio(transcript=None)), {0: ItemAudio(8_000, b"\0\0", 2, "t1")})
    assert engine_history([spoken, wrote("b")], with_audio=False) == (text("b"),)


def test_an_answer_that_is_being_said_is_not_given():
    assert engine_history([wrote("a"), ConversationEntry(message("b", role="assistant"), is_open=True)], with_audio=True) == (text("a"),)


def test_an_answer_aloud_is_given_as_the_words_that_were_heard():
    recording = ItemAudio(24_000, b"", 9_600, transcript_chunks=[(0, "Once "), (4_800, "upon")])
    entry = ConversationEntry(message("a", OutputAudio(transcript="Once upon"), OutputText(text="!"), role="assistant"), {0: recording})
    assert engine_history([entry], with_audio=True)[0].parts == (history.TextPart("Once upon"), history.TextPart("!"))
    recording.truncate(100)
    assert engine_history([entry], with_audio=True)[0].parts == (history.TextPart("Once "), history.TextPart("!"))


def test_calls_and_what_they_gave_are_given_and_lists_of_tools_are_not():
    entries = (
        FunctionCallItem(id="a", name="f", call_id="c", arguments="{}"),
        FunctionCallOutputItem(id="b", call_id="c", output="4"),
        McpCallItem(id="m", server_label="s", name="g", arguments="{}", output="5"),
        McpListToolsItem(id="l", server_label="s", tools=[]),
    )
    assert engine_history(map(ConversationEntry, entries), with_audio=True) == (
        history.ToolCall("c", "f", "{}"),
        history.ToolResult("c", (history.TextPart("4"),)),
        history.ToolCall("m", "g", "{}", namespace="s"),
        history.ToolResult("m", (history.TextPart("5"),)),
    )


def test_a_call_stands_before_its_result_and_what_was_said_between_before_both():
    entries = (
        ConversationEntry(FunctionCallItem(id="a", name="f", call_id="c", arguments="{}")),
        wrote("b"),
        ConversationEntry(FunctionCallOutputItem(id="d", call_id="c", output="4")),
    )
    assert engine_history(entries, with_audio=True) == (
        text("b"),
        history.ToolCall("c", "f", "{}"),
        history.ToolResult("c", (history.TextPart("4"),)),
    )


def test_tokens_that_are_neither_sound_nor_picture_are_text():
    used = events.Usage(id="", input_tokens=9, output_tokens=5, input_audio_tokens=4, input_image_tokens=3, output_audio_tokens=6)
    assert text_token_counts(used) == (2, 0)
