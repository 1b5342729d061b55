"""docs/parity.md says what there is."""

from __future__ import annotations

import pytest

from weft.report import parity

pytest.importorskip("mlx.core")


def written_beside() -> str:
    return parity.PAGE.read_text().split("beside MLX ")[1].split(";")[0]


@pytest.mark.skipif(written_beside() != parity.version(), reason="the page was written beside another MLX")
def test_the_page_is_up_to_date() -> None:
    assert parity.PAGE.read_text() == parity.page(), "run `python -m weft.report.parity`"


def test_what_is_said_to_differ_exists_in_mlx() -> None:
    known = {
        f"{module}.{owner}.{name}" if owner else f"{module}.{name}"
        for _, module, owner in parity.GROUPS
        for name, *_ in parity.rows(module, owner)
    }
    assert set(parity.DIFFERENT) <= known


def test_what_is_missing_is_said_to_differ() -> None:
    missing = [
        f"{module}.{owner}.{name}" if owner else f"{module}.{name}"
        for _, module, owner in parity.GROUPS
        for name, there, _, _ in parity.rows(module, owner)
        if not there
    ]
    assert set(missing) <= set(parity.DIFFERENT), "build them, or say why they are not there"
