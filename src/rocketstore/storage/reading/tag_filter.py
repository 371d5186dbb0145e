"""Which messages of a queue a reader wants, by tag.

Law: a queue entry carries only a 32-bit hash of the tags, so the hash rejects cheaply and the tags
of the record decide. A message is never returned because its tags merely hash alike, which a broker
leaves to its clients (K-C8).

How derived: FilterAPI.buildSubscriptionData and ExpressionMessageFilter of 4.9 (spec F5, B13).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketstore.errors import InvalidFilterError
from rocketstore.format.java_hash import tags_code
from rocketstore.format.queue_entry import MAX_EXT_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Mapping

ALL_TAGS: Final = "*"

_LOW_32_BITS: Final = 0xFFFFFFFF


class TagFilter(NamedTuple):
    """A parsed expression such as ``created || paid``.

    Attributes
    ----------
    tags
        The wanted tags, in the order of the expression, each once.
    codes
        Low 32 bits of their hashes.
    """

    tags: tuple[str, ...]
    codes: frozenset[int]

    def may_match(self, code: int) -> bool:
        """Return whether an entry with this tags code can be of a wanted message.

        A code that is an address of the queue's extension file says nothing about tags.
        """
        return code & _LOW_32_BITS in self.codes or code <= MAX_EXT_ADDRESS

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a record with these properties is wanted."""
        return properties.get("TAGS") in self.tags


def parse_tags(expression: str | None) -> TagFilter | None:
    """Return the filter of an expression, None where it wants everything.

    Parameters
    ----------
    expression
        Tags joined by ``||``, with blanks around them ignored and empty ones left out; None, an
        empty text and ``*`` want everything.

    Raises
    ------
    InvalidFilterError
        The expression has separators but names no tag, as in ``||``; or it is no text.

    Examples
    --------
    >>> parse_tags("created || paid").tags
    ('created', 'paid')
    >>> parse_tags("*") is None
    True
    """
    if expression is None:
        return None
    if not isinstance(expression, str):
        raise InvalidFilterError(
            f"a tag expression is a str, not {type(expression).__name__}",
            hint="write 'a || b', or '*' for everything",
        )
    return _parsed(expression)


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> TagFilter | None:
    if expression.strip() in ("", ALL_TAGS):
        return None
    tags = tuple(dict.fromkeys(part.strip() for part in expression.split("||") if part.strip()))
    if not tags:
        raise InvalidFilterError(
            f"tag expression {expression!r} names no tag",
            hint="write 'a || b', or '*' for everything",
        )
    return TagFilter(tags, frozenset(tag_code(tag) for tag in tags))


def tag_code(tag: str) -> int:
    """Return the low 32 bits of a tag's hash, as `TagFilter.codes` holds them."""
    return tags_code(tag) & _LOW_32_BITS
