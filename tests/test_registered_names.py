"""The names that components may be registered under."""

from __future__ import annotations

import pytest

import fedpbc
from fedpbc.core.types import LinkProcess
from fedpbc.errors import ConfigError
from fedpbc.links import ONE_WAY


@pytest.mark.parametrize(
    "name", ["a:b", "", " ", "two words", "a\nb", "3g", ".hidden", "-x", 'a"b', "a/b", "x" * 61, 3]
)
def test_names_that_mean_something_else_or_nothing_are_refused(name):
    def mine(context: fedpbc.Context) -> LinkProcess:
        raise AssertionError

    before = dict(ONE_WAY.registry)
    with pytest.raises(ConfigError, match=r"^register\(.*\): a name must be of letters, digits, _, - and \.") as caught:
        fedpbc.register(mine, name=name)
    assert "\n" not in str(caught.value)
    assert dict(ONE_WAY.registry) == before


@pytest.mark.parametrize("name", ["mine", "Mine", "m2", "my-links", "lab.links", "größe", "_own", "x" * 60])
def test_names_that_a_file_and_the_command_line_can_say(name):
    def mine(context: fedpbc.Context) -> LinkProcess:
        raise AssertionError

    try:
        fedpbc.register(mine, name=name)
        assert name in ONE_WAY.registry
    finally:
        ONE_WAY.registry.pop(name, None)
