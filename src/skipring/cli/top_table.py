"""Table of ``skipring top`` whose rows are replaced at each refresh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.console import JustifyMethod
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from skipring.cli.top_rows import Column, TopRow, in_order

SORTED_SIGN: Final = " v"


class RowTable(DataTable[Text]):
    """Table sorted by one column; the cursor stays on its row."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "open", key_display="enter"),
        Binding("tab", "app.focus_next", "other table"),
        Binding("s", "sort", "sort"),
    ]

    def __init__(self, columns: Sequence[Column], name: str) -> None:
        super().__init__(cursor_type="row", id=name)
        self._heads = columns
        self._sorted_by = 0
        self._shown: list[TopRow] = []

    def on_mount(self) -> None:
        """Create the columns."""
        for number, column in enumerate(self._heads):
            sign = SORTED_SIGN if number == self._sorted_by else ""
            justify: JustifyMethod = "right" if column.is_number else "left"
            self.add_column(Text(column.name + sign, justify=justify), key=column.name)

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._sorted_by = (self._sorted_by + 1) % len(self._heads)
        chosen = self.chosen
        self.clear(columns=True)  # the sort sign changes the width of two columns
        self.on_mount()
        self.show(self._shown)
        self._choose(chosen)

    def show(self, rows: Sequence[TopRow]) -> None:
        """Show rows; update only the cells if the keys are unchanged."""
        self._shown = in_order(rows, self._sorted_by)
        if [row.key for row in self._shown] == self.keys:
            for row in self._shown:
                self._update(row)
        else:
            self._rebuild()

    @property
    def keys(self) -> list[str]:
        """Return the keys of the rows, from the top down."""
        return [str(key.value) for key in self.rows]

    @property
    def chosen(self) -> str | None:
        """Return the key of the row at the cursor."""
        return self.keys[self.cursor_row] if self.is_valid_row_index(self.cursor_row) else None

    def _update(self, row: TopRow) -> None:
        for column, cell in zip(self._heads, self._justified(row), strict=True):
            if self.get_cell(row.key, column.name) != cell:
                self.update_cell(row.key, column.name, cell, update_width=True)

    def _rebuild(self) -> None:
        chosen = self.chosen
        self.clear()
        for row in self._shown:
            self.add_row(*self._justified(row), key=row.key)
        self._choose(chosen)

    def _choose(self, key: str | None) -> None:
        if key in self.keys:
            self.move_cursor(row=self.keys.index(key), animate=False)

    def _justified(self, row: TopRow) -> list[Text]:
        cells = [cell.copy() for cell in row.cells]
        for cell, column in zip(cells, self._heads, strict=True):
            cell.justify = "right" if column.is_number else "left"
        return cells
