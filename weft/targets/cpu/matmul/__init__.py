"""Matrix products: `lower` chooses and parametrises the kernels of one product; nothing else here is for others.

The bits of a product depend on the values, shapes and dtypes of its operands only: not on layouts, the rest of a batch,
threads, the processor or LLVM's level. Which of two specified orders of summation its elements get follows from
(m, n, k) alone:

- *tiled* (gemm.py): sums over chunks of 256 terms, each with one fused multiply-add per term in the order of k;
- *skinny* (dot.py), where min(m, n) is at most 8 and k is long: chunks of 2048 terms as 16 interleaved sums and a tree.

In both, the sums of the chunks are added up from the left. Within an order, layouts choose how operands are read (in
place, or packed into scratch memory first), and sizes how the output is cut into tasks; neither touches an element's
sum. float16 and bfloat16 are summed in float32 and rounded once; integers wrap; a complex term is four fused
multiply-adds (re: +re·re, -im·im; im: +re·im, +im·re). Nothing is skipped, so NaN and infinities spread as in IEEE 754.

There is no BLAS here: on the processors that were tried these kernels are as fast, from 4 x 4 to 2048 x 2048, and a
library would make results depend on its version, its number of threads and the processor.
"""

from weft.targets.cpu.matmul.lowering import lower

__all__ = ["lower"]
