"""Application behind ``skipring top``: tables that are refreshed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import ClassVar, Final

from rich.terminal_theme import TerminalTheme
from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.widgets import DataTable, Footer, Static

from skipring.cli.ring_page import time_of_day
from skipring.cli.top_rows import (
    NODE_COLUMNS,
    SUPERVISOR_COLUMNS,
    TOPIC_COLUMNS,
    node_rows,
    supervisor_rows,
    topic_rows,
)
from skipring.cli.top_screens import HelpScreen, NodeScreen, RingScreen
from skipring.cli.top_table import RowTable
from skipring.core.peers import TopicId
from skipring.errors import SkipringError
from skipring.view.overview import Observer, Overview
from skipring.view.text import glyphs_for

INTERRUPTED: Final = 130  # exit status after Ctrl-C
_LIGHT: Final = (220, 220, 220)
NO_COLOURS: Final = TerminalTheme((18, 18, 18), _LIGHT, [_LIGHT] * 8)


class TopApp(App[int]):
    """Tables of topics, nodes of the selected topic, and supervisors."""

    ENABLE_COMMAND_PALETTE = False
    CSS: ClassVar[str] = """
    #head, #banner { height: 1; padding: 0 1; }
    #banner { display: none; color: $text-error; text-style: bold; }
    .colourless #banner { color: $foreground; }
    #banner.shown { display: block; }
    RowTable { height: 1fr; overflow-x: hidden; border: round $surface-lighten-3;
               border-title-style: bold; border-title-color: $foreground; }
    RowTable:focus { border: round $accent; }
    RowTable:blur > .datatable--cursor { background: $surface-lighten-1; }
    #supervisors { height: auto; max-height: 7; }
    HelpScreen { align: center middle; }
    #help { width: auto; height: auto; padding: 1 2; border: round $accent; background: $surface; }
    .ascii RowTable { border: ascii $surface-lighten-2; scrollbar-size: 0 0; }
    .ascii RowTable:focus { border: ascii $accent; }
    .ascii VerticalScroll { scrollbar-size: 0 0; }
    .ascii #help { border: ascii $accent; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]

    def __init__(
        self, observer: Observer, first: Overview, refresh_s: float, encoding: str
    ) -> None:
        super().__init__()
        self._observer = observer
        self._overview = first
        self._refresh_s = refresh_s
        self._glyphs = glyphs_for(encoding)
        self.set_class(not self._glyphs.has_dots, "ascii")
        if self.no_color:
            # Colours become greys by brightness, and a dark red would not be readable.
            self.ansi_theme_dark = NO_COLOURS
            self.add_class("colourless")

    def compose(self) -> ComposeResult:
        """Yield the tables, with a line above them and the keys below."""
        yield Static(id="head")
        yield Static(id="banner")
        yield RowTable(TOPIC_COLUMNS, "topics")
        yield RowTable(NODE_COLUMNS, "nodes")
        yield RowTable(SUPERVISOR_COLUMNS, "supervisors")
        yield Footer()

    def on_mount(self) -> None:
        """Show the first overview and start to refresh."""
        supervisors = self._table("supervisors")
        supervisors.can_focus, supervisors.show_cursor = False, False
        self._table("topics").border_title = "topics"
        supervisors.border_title = "supervisors"
        self._table("topics").focus()
        self._show(self._overview)
        self._keep_looking()

    @work
    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            with suppress(NoMatches):  # the application ends and removes the tables
                await self._look()

    async def _look(self) -> None:
        try:
            self._show(await self._observer.overview())
        except SkipringError as error:
            self._tell(str(error))

    # -- display -------------------------------------------------------------------------------

    def _table(self, name: str) -> RowTable:
        return self.screen_stack[0].query_one(f"#{name}", RowTable)

    def _line(self, name: str) -> Static:
        return self.screen_stack[0].query_one(f"#{name}", Static)

    def _show(self, overview: Overview) -> None:
        """Update everything that is visible."""
        self._overview = overview
        self._line("head").update(self._head())
        silent = [each.address for each in overview.supervisors if not each.answers]
        self._tell(f"{', '.join(silent)}: no answer; below is what the nodes say" if silent else "")
        self._table("topics").show(topic_rows(overview, self._glyphs))
        self._table("supervisors").show(supervisor_rows(overview, self._glyphs))
        self._show_nodes()
        if isinstance(self.screen, RingScreen | NodeScreen):
            self.screen.look()

    def _head(self) -> Text:
        topics = self._overview.topics
        members = sum(topic.members for topic in topics)
        more = f" and {self._overview.unlisted} not looked into" if self._overview.unlisted else ""
        about = f"   topics: {len(topics)}{more}   members: {members:,}"
        now = (f"   {time_of_day()}", "dim")
        return Text.assemble(("skipring top", "bold"), about, now, no_wrap=True)

    def _tell(self, trouble: str) -> None:
        """Show an error above the tables; an empty text hides the line."""
        banner = self._line("banner")
        banner.set_class(bool(trouble), "shown")
        banner.update(Text(f"{self._glyphs.wrong} {trouble}", no_wrap=True))

    def _show_nodes(self) -> None:
        nodes, topic = self._table("nodes"), self._chosen_topic
        inspection = self._observer.inspections.get(topic) if topic is not None else None
        title = f"nodes of {topic}" if topic is not None else "nodes"
        if nodes.border_title != title:
            nodes.clear()  # also resets the cursor
        nodes.border_title = title
        nodes.show(node_rows(inspection, self._glyphs) if inspection is not None else [])

    @property
    def _chosen_topic(self) -> TopicId | None:
        return self._table("topics").chosen

    # -- user actions --------------------------------------------------------------------------

    @on(DataTable.RowHighlighted, "#topics")
    def _on_chosen(self) -> None:
        self._show_nodes()

    @on(DataTable.RowSelected, "#topics")
    def _on_topic_opened(self) -> None:
        topic = self._chosen_topic
        if topic is not None and topic in self._observer.inspections:
            self.push_screen(RingScreen(self._observer, topic, self._glyphs))

    @on(DataTable.RowSelected, "#nodes")
    def _on_node_opened(self) -> None:
        node, topic = self._table("nodes").chosen, self._chosen_topic
        if node is not None and topic is not None:
            self.push_screen(NodeScreen(self._observer, topic, node, self._glyphs))

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(HelpScreen())

    def action_interrupt(self) -> None:
        """Exit with the status of an interrupted command."""
        self.exit(INTERRUPTED)
