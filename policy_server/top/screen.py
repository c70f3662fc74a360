"""Fits blocks into a terminal: all of them where they fit, else the most important ones.

A terminal that is too small would cut the end off without a word. Here the last line says what is
missing. What is printed, into a pipe or once, is everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

Lines = list[list[Segment]]


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that belong together. `rank`: the lower, the later it is left out. `name`: what the
    last line calls it when it is; `spaced`: a blank line before it, where there is room."""

    name: str
    content: RenderableType
    rank: int
    spaced: bool = False


@dataclass(frozen=True, slots=True)
class Fitted:
    """`whole` where it fits, else as much of `short` as does. Both in the order of display.
    `printed`: it need not fit."""

    whole: Sequence[Block]
    short: Sequence[Block]
    printed: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich, again after the window has changed."""
        whole = [_lines(block, console, options) for block in self.whole]
        spaces = [block.spaced for block in self.whole]
        if self.printed or sum(spaces) + sum(map(len, whole)) <= options.size.height:
            yield from _joined(whole, spaces)
        else:
            yield from self._cut(console, options, options.size.height)

    def _cut(self, console: Console, options: ConsoleOptions, height: int) -> RenderResult:
        lines = [_lines(block, console, options) for block in self.short]
        room = height - 1  # the last line
        shown: set[int] = set()
        by_rank = sorted(range(len(lines)), key=lambda at: self.short[at].rank)
        for at in by_rank:
            if len(lines[at]) <= room:
                shown.add(at)
                room -= len(lines[at])
        kept = sorted(shown)
        spaces = [False] * len(kept)
        for position, at in enumerate(kept):
            if self.short[at].spaced and room:
                spaces[position], room = True, room - 1
        yield from _joined([lines[at] for at in kept], spaces)
        missing = [self.short[at].name for at in by_rank if at not in shown]
        told = Text(_missing(missing), "bold yellow", no_wrap=True, overflow="ellipsis")
        yield from _joined([console.render_lines(told, options.reset_height(), pad=False)], [False])


def _lines(block: Block, console: Console, options: ConsoleOptions) -> Lines:
    return console.render_lines(block.content, options.reset_height(), pad=False)


def _joined(blocks: Sequence[Lines], spaces: Sequence[bool]) -> RenderResult:
    for lines, spaced in zip(blocks, spaces, strict=True):
        if spaced:
            yield Segment.line()
        for line in lines:
            yield from line
            yield Segment.line()


def _missing(names: Sequence[str]) -> str:
    """One line, the most important names first; several of one name are counted."""
    if not names:
        return "… more in a larger window; --once prints all"
    counted = Counter(names)
    said = [f"{count} {name}s" if count > 1 else name for name, count in counted.items()]
    return f"… {len(names)} more (--once prints all): " + ", ".join(said)
