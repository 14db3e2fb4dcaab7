"""Words that mean nothing: what a simulated engine answers with. The same seed, the same words."""

import random
from collections.abc import Iterator

_TEXT = """the a one this that river stone light field cloud tree road wind rain hill bird runs
stands falls moves turns opens closes shines grows rests slowly quietly brightly near beyond under
over with without and then while"""
_WORDS = _TEXT.split()


def words(seed: int, count: int) -> Iterator[str]:
    """Yield so many words, one a token."""
    choose = random.Random(seed).choice  # noqa: S311 harmless text
    for _ in range(count):
        yield choose(_WORDS) + " "
