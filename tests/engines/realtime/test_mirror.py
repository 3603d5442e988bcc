"""What an upstream has of a conversation, made equal to a history."""

from itertools import count

from hypothesis import given, strategies as st

from antiphon.engine_api import history as engine_history
from antiphon.engines.realtime.items import fingerprint, live_turn_fingerprint, to_wire_item
from antiphon.engines.realtime.mirror import Mirror, PartText
from antiphon.wire.realtime.client_events import ConversationItemCreate, ConversationItemDelete, ConversationItemTruncate
from antiphon.wire.realtime.items import ItemReference

PCM = b"\1\2" * 2400


def write(turn, item_id):
    return to_wire_item(turn, item_id, lambda pcm, _rate_hz: pcm)


def mirror():
    numbers = count(1)
    return Mirror(lambda: f"item_{next(numbers)}")


def said(text, role="user", **more):
    return engine_history.Message(role, (engine_history.TextPart(text),), **more)


def spoken(turn_id, transcript=None):
    return engine_history.Message("user", (engine_history.SpeechPart(PCM, 24_000, turn_id, transcript),))


class Upstream:
    """Items in order, as client events make them."""

    def __init__(self):
        self.ids = []

    def take(self, events):
        for event in events:
            match event:
                case ConversationItemDelete(item_id=item_id):
                    self.ids.remove(item_id)
                case ConversationItemCreate(item=item, previous_item_id=behind):
                    at = 0 if behind == "root" else self.ids.index(behind) + 1 if isinstance(behind, str) else len(self.ids)
                    self.ids.insert(at, item.id)


TURNS = st.one_of(
    st.sampled_from("abcde").map(said),
    st.sampled_from("abc").map(lambda text: said(text, "assistant")),
    st.sampled_from("xy").map(lambda id: engine_history.ToolCall(id, "look", "{}")),
    st.sampled_from("xy").map(lambda id: engine_history.ToolResult(id, (engine_history.TextPart("seen"),))),
    st.just(engine_history.ReasoningItem("hm")),
)


@given(st.lists(st.lists(TURNS, max_size=8), max_size=5))
def test_whatever_the_histories_upstream_is_equal_to_the_last(histories):
    ours, theirs = mirror(), Upstream()
    for history in histories:
        theirs.take(ours.sync(history, write))
        assert ours.is_in_sync(history)
        assert [placed.id for placed in ours._items] == theirs.ids
        assert ours.sync(history, write) == []


def test_a_turn_that_was_heard_stays_whatever_is_learnt_of_its_words():
    ours = mirror()
    ours.expect(live_turn_fingerprint("turn_1"), "item_u")
    assert ours.sync([spoken("turn_1"), said("And")], write)[0].item.id == "item_1"
    assert ours.sync([spoken("turn_1", "words"), said("And")], write) == []


def test_a_committed_turn_is_counted_on_before_its_item_has_a_name():
    ours = mirror()
    placed = ours.expect(live_turn_fingerprint("turn_1"))
    assert ours.sync([spoken("turn_1")], write) == []
    ours.register("item_u")  # told of before the commit is
    assert ours.assign_id(placed, "item_u") == []
    assert ours.is_in_sync([spoken("turn_1")])


def test_a_committed_turn_that_is_unwanted_is_deleted_once_it_has_a_name():
    ours = mirror()
    placed = ours.expect(live_turn_fingerprint("turn_1"))
    assert [type(event) for event in ours.sync([said("Hi")], write)] == [ConversationItemCreate]
    (deletion,) = ours.assign_id(placed, "item_u")
    assert deletion.item_id == "item_u"


def test_items_that_nobody_asked_for_are_deleted():
    ours = mirror()
    ours.register("item_x")
    ours.register("item_x")
    (deletion,) = ours.sync([], write)
    assert deletion.item_id == "item_x"


def test_an_answer_is_cut_where_the_listening_ended_and_once():
    ours = mirror()
    placed = ours.expect(None, "item_a")
    words = placed.parts.setdefault(0, _words((0, "One"), (300, " two"), (600, " three"), sound_ms=900))
    history = [said("One two", "assistant", played_ms=500), said("Stop")]
    truncation, creation = ours.sync(history, write)
    assert (truncation.item_id, truncation.content_index, truncation.audio_end_ms) == ("item_a", 0, 500)
    assert isinstance(truncation, ConversationItemTruncate)
    assert isinstance(creation, ConversationItemCreate)
    assert (words.text, words.audio_ms) == ("One two", 500)
    assert ours.sync(history, write) == []


def test_an_answer_whose_words_all_came_first_is_cut_all_the_same():
    ours = mirror()
    ours.expect(None, "item_a").parts[0] = _words((0, "One two three"), sound_ms=900)
    (truncation,) = ours.sync([said("One two three", "assistant", played_ms=100)], write)
    assert truncation.audio_end_ms == 100


def test_what_is_upstream_already_is_only_named_to_an_answer_aside():
    ours = mirror()
    ours.expect(live_turn_fingerprint("turn_1"), "item_u")
    given = ours.to_input_items([spoken("turn_1"), said("New")], write)
    assert given[0] == ItemReference(id="item_u")
    assert given[1].content[0].text == "New"
    assert ours.is_in_sync([spoken("turn_1")]), "nothing has changed"


def test_turns_that_are_no_items_have_no_likeness():
    assert fingerprint(engine_history.ReasoningItem("hm")) is None
    assert fingerprint(engine_history.HostedToolItem({"type": "web_search_call"})) is None


def _words(*pieces, sound_ms):
    return PartText([(float(at_ms), text) for at_ms, text in pieces], sound_ms)
