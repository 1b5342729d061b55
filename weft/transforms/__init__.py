"""Functions over graphs: derivatives forwards and backwards, batching, compilation. One driver each; the rules are the
primitives'."""

from weft.primitives.control import DRIVERS
from weft.transforms.jvp import push_forward
from weft.transforms.paths import between
from weft.transforms.vjp import pull_back
from weft.transforms.vmap import batch

DRIVERS.update(push_forward=push_forward, pull_back=pull_back, batch=batch, between=between)
