"""Numbers in sentences."""

import pytest

from mildly.words import counted


@pytest.mark.parametrize(("number", "words"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (20_000, "20,000 rows")])
def test_one_thing_has_a_singular_and_thousands_a_comma(number, words):
    assert counted(number, "row") == words


def test_a_plural_may_be_given():
    assert counted(2, "copy", "copies") == "2 copies"
