"""How every table of results looks in a terminal."""

from rich.table import Table


def bare_table(caption: str) -> Table:
    """An empty table without lines, two spaces between its columns, with a caption below."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), caption=caption, caption_justify="left")
