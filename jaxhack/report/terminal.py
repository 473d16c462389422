"""How every table of results looks in a terminal."""

from rich.console import RenderableType
from rich.style import StyleType
from rich.table import Table
from rich.text import Text


class BareTable(Table):
    """A table whose cells are text as it is: names in brackets are no markup, and ``:smile:`` is no picture."""

    def add_row(
        self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False
    ) -> None:
        """As rich's."""
        plain = (Text(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*plain, style=style, end_section=end_section)


def bare_table(caption: str) -> Table:
    """An empty table without lines, two spaces between its columns, with a caption below."""
    said = Text(caption, style="table.caption")
    return BareTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), caption=said, caption_justify="left")
