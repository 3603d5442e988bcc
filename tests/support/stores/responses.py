"""Responses for tests of stores."""

from antiphon.records import ItemRecord, ResponseRecord


def response(id: str, status: str = "completed", body: bytes = b"{}", created_at: int = 1) -> ResponseRecord:
    items = (ItemRecord(id=f"msg_{id}", direction="input", body=body), ItemRecord(id=f"out_{id}", direction="output", body=body))
    return ResponseRecord(
        id=id, tenant="ada", created_at=created_at, status=status, model="m", previous_response_id=None, body=body, items=items
    )
