"""Screens of ``skipring top``: the ring of a topic, the changes of a node, help."""

from __future__ import annotations

from typing import ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Static

from skipring.admin.diagnosis import explain
from skipring.admin.inspector import Inspector
from skipring.cli.diagnosis_view import changes_in, explanation_view
from skipring.cli.ring_page import RingPanel
from skipring.cli.ring_view import PATIENCE_S, RingWatch
from skipring.core.peers import NodeId, TopicId
from skipring.errors import SkipringError
from skipring.view.overview import Observer
from skipring.view.text import Glyphs

HELP: Final = """\
Arrows    choose a topic or a node
Tab       go to the other table
Enter     open a topic's ring, or what changed a node
Escape    go back
s         sort by the next column
q         quit

stored    publications, as many as any member has
per s     how many more each second
lag       how many the one lacks that is farthest behind
roots     equal roots are equal contents; or who differs
state     what keeps the ring from being legitimate
requests  of all rings to their supervisor in an interval; the mean of a
          healthy ring is below 0.912, and a warning means more than chance"""

_BACK: Final = Binding("escape,backspace,enter", "app.pop_screen", "back", key_display="esc")


class HelpScreen(ModalScreen[None]):
    """Keys, and the meaning of the columns."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,question_mark", "app.pop_screen", "back", key_display="esc")
    ]

    def compose(self) -> ComposeResult:
        """Yield one text."""
        yield Static(HELP, id="help", markup=False)


class RingScreen(Screen[None]):
    """Ring of one topic, repainted at each refresh."""

    BINDINGS: ClassVar[list[BindingType]] = [_BACK]

    def __init__(self, observer: Observer, topic: TopicId, glyphs: Glyphs) -> None:
        super().__init__()
        self._observer = observer
        self._topic = topic
        self._glyphs = glyphs
        self._watch = RingWatch(hint="Escape goes back")
        self.look()

    def compose(self) -> ComposeResult:
        """Yield the picture, above the keys."""
        yield Static(id="ring")
        yield Footer()

    def look(self) -> None:
        """Record the last inspection of the topic and repaint."""
        inspection = self._observer.inspections.get(self._topic)
        if inspection is not None:
            self._watch.note(inspection, self._trouble)
        if self.is_mounted:
            self._paint()

    @property
    def _trouble(self) -> str | None:
        """Return an error if the topic's supervisor does not answer; otherwise None."""
        outsider = self._observer.outsider
        if self._observer.statuses.get(outsider.supervisor_of(self._topic)) is not None:
            return None
        return outsider.no_supervisor_of(self._topic)

    def on_resize(self, _: Resize) -> None:
        """Paint the ring in the new size."""
        self._paint()

    def _paint(self) -> None:
        page = RingPanel(self.size.width, self.size.height - 1, self._glyphs)
        self.query_one("#ring", Static).update(self._watch.painted(page))


class NodeScreen(Screen[None]):
    """State of one node, and its last changes."""

    BINDINGS: ClassVar[list[BindingType]] = [_BACK]

    def __init__(self, observer: Observer, topic: TopicId, node: NodeId, glyphs: Glyphs) -> None:
        super().__init__()
        self._observer = observer
        self._topic = topic
        self._node = node
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        """Yield a scrollable text, above the keys."""
        with VerticalScroll():
            yield Static(f"asking {self._node} ...", id="node", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Request the changes at once."""
        self.look()

    @work(exclusive=True)
    async def look(self) -> None:
        """Request the changes of the node and show them."""
        inspection = self._observer.inspections.get(self._topic)
        if inspection is None:
            return
        inspector = Inspector(self._observer.outsider, self._topic)
        inspector.patience_s = PATIENCE_S
        is_there = self._node in inspection.statuses
        journal = await inspector.journal(self._node) if is_there else None
        try:
            explanation = explain(inspection, self._node, journal)
        except SkipringError as error:  # the node has left meanwhile
            self.query_one("#node", Static).update(str(error))
            return
        view = explanation_view(explanation, self._glyphs, changes_in(self.size.height))
        self.query_one("#node", Static).update(view)
