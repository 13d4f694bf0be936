"""Claims of speed, as scripts that print a table: ``python -m benchmarks.fabrics`` and so on."""

import simdp  # noqa: F401  before NumPy, so that BLAS has the one thread that simdp gives it
