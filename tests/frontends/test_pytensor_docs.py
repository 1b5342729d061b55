"""The table of what is translated is the one that the rules make."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pytensor", minversion="3.3")

import weft.frontends.pytensor
from weft.frontends.pytensor import coverage

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytensor.md"


def test_the_table_of_operations_is_up_to_date() -> None:
    assert weft.frontends.pytensor.WEFT
    assert coverage.table() in PAGE.read_text(), "run `python -m weft.frontends.pytensor.coverage`"


def test_all_scalar_operations_are_translated() -> None:
    assert not coverage.untranslated_scalars()


def test_all_distributions_are_translated() -> None:
    assert not coverage.untranslated_distributions()
