"""Evaluation: the nodes behind the user's arrays become a graph, the graph a program (looked up by its structure), the
program values.

`entry` is where it begins; `reach` finds what is to be computed, `structure` the key, `programs` the program, and
`running` runs it. `overwriting` uses memory again where nobody can tell, `updates` writes slice updates of computed
data, `together` computes evaluations that have some in one program, `later` lets the caller go on meanwhile, `beside`
keeps away from what other threads trace, and `turns` has the lock.
"""

from weft.evaluate.beside import TraceInput, evaluated_beside
from weft.evaluate.entry import evaluate, evaluate_later, evaluate_one, evaluated
from weft.evaluate.overwriting import is_large
from weft.evaluate.programs import Recipe, close
from weft.evaluate.turns import LOCK, PATIENCE
