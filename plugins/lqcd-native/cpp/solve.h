// Whole solves: conjugate gradient on the normal equations and BiCGStab, plain and mixed, batched over right-hand sides.
//
// The account of a column (claims, true residuals, restarts, stagnation, when to stop) is that of lqcd_core.solvers: the
// same decisions from the same numbers, so that a solve may run on either side. Columns that are done leave the batch.
#pragma once

#include <complex>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "vectors.h"

namespace lqcd_native {

// An operator as passes of the hop: y = last(first(before x), x). `first` lands on the other parity; `before` is the
// site-diagonal factor that the adjoint of a symmetric Schur complement starts with. Without `first` it is M on the full lattice.
struct Passes {
  std::shared_ptr<PackedDiagonal> before;
  std::shared_ptr<Hop> first, last;
};

// A system in one precision.
struct System {
  std::shared_ptr<Layout> layout;
  int threads;
  Passes apply, adjoint;  // adjoint.last may be null: BiCGStab does without
};

enum class Why : int { live = -1, converged, zero_source, maximum_iterations, stagnation, breakdown, not_finite, not_positive };
const char* name_of(Why why);

enum class Recurrence { cgnr, bicgstab };
enum class Mixing { none, defect_correction, reliable_updates };

struct SolveParameters {
  Recurrence recurrence;
  Mixing mixing;
  std::vector<double> targets;  // relative residual per column
  int64_t maxiter;              // iterations in all
  int64_t restarts, patience;   // of the recurrence, as in lqcd_core.solvers
  double inner_tol, delta;      // mixed: where an inner solve ends; fall of the residual between two updates
  int64_t inner_maxiter, cycles;
};

struct SolveAnswer {
  FieldPtr x;
  std::vector<Why> reasons;
  std::vector<int64_t> iterations;
  std::vector<std::vector<double>> history;  // relative residual of all columns after each iteration
  int64_t applications = 0, outer_applications = 0;
};

// Called after each iteration, without the GIL, with the residuals of all columns; may throw to end the solve.
using Watch = std::function<void(int64_t iteration, const std::vector<double>& residuals)>;

// Needs no GIL. b and x0 (or null) are left alone; `inner` is null unless the method is mixed.
SolveAnswer solve(const System& outer, const System* inner, const SolveParameters& parameters, const Field& b, const Field* x0,
                  const Watch& watch);

}  // namespace lqcd_native
