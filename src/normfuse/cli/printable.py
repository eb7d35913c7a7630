"""Names come out of models, and some would steer a terminal: what is not to be seen is printed as a substitute."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_KEPT = "\n\t"
# Unicode has pictures of the control characters of ASCII.
_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in _KEPT} | {0x7F: 0x2421}
_REPLACEMENT = 0xFFFD
# Control characters of Latin-1, and what turns the direction of the text behind it.
_OTHERS = (*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SUBSTITUTES = dict.fromkeys(_OTHERS, _REPLACEMENT) | _PICTURES


def printable(text: str) -> str:
    """Return the text with a substitute for each character that a terminal would obey."""
    return text.translate(_SUBSTITUTES)


class PrintingConsole(Console):
    """A console whose own colours and movements are all that a terminal obeys."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is printed, piece by piece."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
