"""Many right-hand sides through one operator: batches, columns that converge apart, and a subset of a propagator."""

import numpy as np

import lqcd_core as lqcd

U = lqcd.GaugeField.random(lqcd.LatticeGeometry(T=4, Z=4, Y=4, X=4), seed=1)
M = lqcd.WilsonDirac(mass=0.2).bind(U, n_rhs=4)

# A batch is a leading axis. Column k of a batch is the field of stream k: it does not depend on the batch.
b = lqcd.ColorSpinorField.gaussian(U.geometry, seed=3, n_rhs=4)
one_by_one = np.stack([M(lqcd.ColorSpinorField(U.geometry, column)).array for column in b.batch])
print("batch and one by one differ by", float(abs(M(b).array - one_by_one).max()))

# Each column has its own account: a zero column and one of size 1e-30 are no trouble.
b.storage[1] = 0
b.storage[2] *= 1e-30
x, info = lqcd.ConjugateGradient(tol=1e-8).solve(M.normal_linear, b)
for k in range(4):
    print(f"column {k}: {info.column_iterations[k]:3d} iterations, residual {info.column_residuals[k]:.1e}")

# A source is a recipe: it makes the columns that are asked for. Column = source spin * Nc + source colour.
source = lqcd.wall_source(U.geometry, t=0)
print(source.describe(), "\ncolumns 0 and 5:", source.columns([0, 5]).shape)
solution, info = lqcd.solve(M, source.columns([0, 5]), lqcd.BiCGStab(tol=1e-8))
print("solved:", solution.shape, info)
