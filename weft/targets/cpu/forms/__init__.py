"""The forms of loop-nest kernels that the CPU has, a class each, and the choice between them."""

from weft.passes.fuse import Group
from weft.passes.lower import Item, Lowerer
from weft.targets.cpu.forms.base import Form
from weft.targets.cpu.forms.column import Column
from weft.targets.cpu.forms.flat import Flat
from weft.targets.cpu.forms.folded import Folded
from weft.targets.cpu.forms.long_row import Partial
from weft.targets.cpu.forms.map import Map
from weft.targets.cpu.forms.narrow import Narrow
from weft.targets.cpu.forms.row import Row
from weft.targets.cpu.forms.short import Short
from weft.targets.cpu.forms.tile import Tile
from weft.targets.nest import Nest

FORMS: dict[str, tuple[type[Form], ...]] = {
    "map": (Tile, Flat, Map),
    "row": (Partial, Folded, Short, Row),
    "column": (Narrow, Column, Partial, Folded, Short, Row),
}
"""By what fusion calls a group: the forms that are tried, in order. The last one fits everything."""


def schedule(lowerer: Lowerer, group: Group) -> Item:
    """A fused group made ready to run, in the first form that fits it."""
    nest = Nest(lowerer, group)
    return next(item for form in FORMS[group.form] if (item := form.schedule(nest)) is not None)


__all__ = ["FORMS", "Form", "schedule"]
