"""Which messages of a queue a reader wants, by tag.

Law: a queue entry carries only a 32-bit hash of the tags, so the hash rejects cheaply and the tags
of the record decide (``native.page``). A message is never returned because its tags merely hash
alike, which a broker leaves to its clients (K-C8).

How derived: FilterAPI.buildSubscriptionData and ExpressionMessageFilter of 4.9 (spec F5, B13).
"""

from __future__ import annotations

from rocketstore.errors import InvalidFilterError


def parse_tags(expression: str | None) -> tuple[str, ...]:
    """Return the tags of an expression, each once; none where it wants every message.

    Tags are joined by ``||``, with blanks around them ignored and empty ones left out; None, an
    empty text and ``*`` want everything. Raises `InvalidFilterError` where there are separators but
    no tag, as in ``||``, or where it is no text.

    >>> parse_tags("created || paid"), parse_tags("*")
    (('created', 'paid'), ())
    """
    if expression is None:
        return ()
    if not isinstance(expression, str):
        raise InvalidFilterError(
            f"a tag expression is a str, not {type(expression).__name__}",
            hint="write 'a || b', or '*' for everything",
        )
    if expression.strip() in ("", "*"):
        return ()
    tags = tuple(dict.fromkeys(part.strip() for part in expression.split("||") if part.strip()))
    if not tags:
        raise InvalidFilterError(
            f"tag expression {expression!r} names no tag",
            hint="write 'a || b', or '*' for everything",
        )
    return tags
