import json

from antiphon.wire.codec.types import encode
from antiphon.wire.responses.endpoints import ItemList, ResponseDeleted


def test_a_deleted_response_says_so():
    assert encode(ResponseDeleted(id="resp_1")) == b'{"id":"resp_1","object":"response","deleted":true}'


def test_an_empty_list_has_neither_a_first_nor_a_last():
    written = encode(ItemList(data=[], first_id="", last_id="", has_more=False))
    assert json.loads(written) == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}
