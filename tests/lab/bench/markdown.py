"""Tables in Markdown, as what is in their cells."""


def cells(lines: list[str]) -> list[list[str]]:
    """The rows of a table, its header first."""
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return [row for row in rows if not row[0].startswith("---")]
