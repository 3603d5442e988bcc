import json

import pytest

from antiphon.errors import ClientError
from antiphon.wire.codec.reading import Reader
from antiphon.wire.codec.types import encode
from antiphon.wire.responses.endpoints import ConversationRequest, ItemList, ItemsRequest, ResponseDeleted

ITEM = {"type": "message", "role": "user", "content": "Hello"}


def test_a_deleted_response_says_so():
    assert encode(ResponseDeleted(id="resp_1")) == b'{"id":"resp_1","object":"response","deleted":true}'


def test_an_empty_list_has_neither_a_first_nor_a_last():
    written = encode(ItemList(data=[], first_id=None, last_id=None, has_more=False))
    assert json.loads(written) == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


@pytest.mark.parametrize("kind", [ConversationRequest, ItemsRequest])
def test_twenty_items_are_as_many_as_can_be_added_at_once(kind):
    body = {"items": [ITEM] * 20}
    assert json.loads(encode(Reader(kind).read(json.dumps(body).encode()))) == body
    with pytest.raises(ClientError) as caught:
        Reader(kind).read(json.dumps({"items": [ITEM] * 21}).encode())
    assert (caught.value.param, caught.value.code) == ("items", "array_above_max_length")
