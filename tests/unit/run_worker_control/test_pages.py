"""Page tokens: ours come back as they went, others are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_worker.domain import pages
from run_worker.domain.inputs import InputError

LIST = pages.scope("things", "ann")


@given(st.datetimes(timezones=st.just(UTC)), st.uuids())
def test_time_keys_come_back(at: datetime, row_id: UUID) -> None:
    """1. Encode a row's time and id.  2. Decoding gives both, to the microsecond."""
    assert pages.decode_time_key(LIST, pages.encode_time_key(LIST, at, row_id)) == (at, row_id)


@given(
    st.integers(0, 2**63 - 1), st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=50)
)
def test_number_and_name_keys_come_back(number: int, name: str) -> None:
    """1. Encode a number and a name.  2. Decoding gives them."""
    assert pages.decode_number_key(LIST, pages.encode_number_key(LIST, number)) == number
    assert pages.decode_name_key(LIST, pages.encode_name_key(LIST, name)) == name


@given(st.text(max_size=60))
def test_anything_else_is_an_input_error(token: str) -> None:
    """1. Take any text as a token.  2. Each decoder gives a value or an InputError, nothing else."""
    for decode in (pages.decode_time_key, pages.decode_number_key, pages.decode_name_key):
        try:
            decode(LIST, token)
        except InputError as error:
            assert error.field == "page_token"  # noqa: PT017  # raising is allowed, not demanded


def test_a_time_beyond_the_calendar_is_not_ours() -> None:
    """1. Forge a token with the first hour of year 1, east of Greenwich.  2. It is refused."""
    forged = pages.encode_time_key(LIST, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), UUID(int=1))
    with pytest.raises(InputError):
        pages.decode_time_key(LIST, forged)


def test_a_token_of_another_list_is_refused() -> None:
    """1. Take a token of one list.  2. A list of another name, user or filter refuses it."""
    token = pages.encode_number_key(LIST, 7)
    for listed in (("others", "ann"), ("things", "bob"), ("things", "ann", "filter")):
        with pytest.raises(pages.PageTokenError):
            pages.decode_number_key(pages.scope(*listed), token)


def test_no_token_is_the_first_page() -> None:
    """1. Decode an empty token.  2. Nothing is skipped."""
    assert pages.decode_time_key(LIST, "") == (None, None)
    assert pages.decode_number_key(LIST, "") == 0
    assert pages.decode_name_key(LIST, "") == ""


def test_a_time_without_a_zone_is_not_ours() -> None:
    """1. Forge a token with a local time.  2. It is refused."""
    forged = pages.encode_time_key(LIST, datetime(2026, 1, 1), UUID(int=1))  # the point of the test
    with pytest.raises(InputError):
        pages.decode_time_key(LIST, forged)


def test_sizes() -> None:
    """1. Ask for 0, 7 and too many.  2. The default, 7 and the maximum; a negative size is refused."""
    assert [pages.page_size(asked, default=50, maximum=200) for asked in (0, 7, 999)] == [50, 7, 200]
    with pytest.raises(InputError):
        pages.page_size(-1, default=50, maximum=200)
