"""docs/tour.md and docs/users.md, run: every command of them on a sandbox, and what is printed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.integration.cli.pages import DOCS, check

CHANGES = ("hold", "priority", "cancel", "release")


def test_the_tour_is_what_a_user_sees(tmp_path: Path) -> None:
    def is_shown(command: str) -> bool:
        return bool(re.search(r"(^|\| )fluence (explain|whatif)|^kubectl get events", command))

    check(DOCS / "tour.md", tmp_path, is_shown)


def test_a_researchers_day(tmp_path: Path) -> None:
    """As an account with the role `edit`. What changes something is run once; what shows something until it
    shows what is on the page."""

    def is_shown(command: str) -> bool:
        words = command.split()
        return words[:2] == ["kubectl", "fluence"] and words[2] not in CHANGES

    check(DOCS / "users.md", tmp_path, is_shown, user="ann")
