"""Bytes that are no text, in messages that want text."""

from __future__ import annotations

import pytest
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from policy_server.adapters.mend import MAX_DEPTH, mended

KIND = StreamAccessLogsMessage.DESCRIPTOR
SLOT = "0123456789abcdef"


def message(**headers: str) -> bytes:
    made = StreamAccessLogsMessage()
    entry = made.http_logs.log_entry.add()
    entry.request.request_id = SLOT
    entry.request.request_headers.update(headers)
    entry.response.response_code.value = 200
    entry.common_properties.metadata.filter_metadata["a"].fields["b"].string_value = SLOT
    return bytes(made.SerializeToString())


@given(st.binary(min_size=len(SLOT), max_size=len(SLOT)))
def test_whatever_stands_for_text_the_rest_is_read(odd: bytes) -> None:
    broken = message(uid="u").replace(SLOT.encode(), odd)
    read = StreamAccessLogsMessage.FromString(mended(broken, KIND)).http_logs.log_entry[0]
    assert read.request.request_headers["uid"] == "u"
    assert read.response.response_code.value == 200
    assert len(read.request.request_id.encode()) == len(odd)


@given(st.text(min_size=1))
def test_a_sound_message_stays_as_it_is(text: str) -> None:
    assert mended(message(uid=text), KIND) == message(uid=text)


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_message_or_a_decode_error(raw: bytes) -> None:
    try:
        StreamAccessLogsMessage.FromString(mended(raw, KIND))
    except DecodeError:
        return


def test_nesting_is_bounded() -> None:
    made = StreamAccessLogsMessage()
    value = made.http_logs.log_entry.add().common_properties.metadata.filter_metadata["a"]
    for _ in range(MAX_DEPTH):
        value = value.fields["x"].struct_value
    with pytest.raises(DecodeError):
        mended(made.SerializeToString(), KIND)
