// Whole solves as Python sees them. Every size and layout is checked here.

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "bind.h"
#include "solve.h"

namespace lqcd_native {

using namespace nb::literals;

namespace {

constexpr auto kPatience = std::chrono::milliseconds(20);  // between two looks at signals

void check_passes(const Passes& p, const Layout& layout, const char* message) {
  need(p.last != nullptr, message);
  need(p.last->target()->same(layout), "an operator of another space (lattice, parity or precision)");
  if (p.first) {
    need(p.first->source()->same(layout) && p.last->source()->same(*p.first->target()), "the two passes do not fit");
  } else {
    need(p.last->source()->same(layout) && !p.before, "a single pass lands where it comes from");
  }
  need(!p.before || p.before->layout->same(layout), "the site-diagonal term was packed for another layout");
}

void check_system(const System& s, bool adjoint) {
  check_passes(s.apply, *s.layout, "a system needs its operator");
  if (adjoint) check_passes(s.adjoint, *s.layout, "the normal equations need the adjoint");
  need(s.threads >= 1, "threads must be at least 1");
}

nb::tuple run(const System& outer, const System* inner, const std::string& recurrence, const std::string& mixing,
              const std::vector<double>& targets, int64_t maxiter, int64_t restarts, int64_t patience, double inner_tol, double delta,
              int64_t inner_maxiter, int64_t cycles, const Field& b, const Field* x0, nb::object callback) {
  SolveParameters p;
  need(recurrence == "cgnr" || recurrence == "bicgstab", "no such recurrence");
  p.recurrence = recurrence == "cgnr" ? Recurrence::cgnr : Recurrence::bicgstab;
  need(mixing == "none" || mixing == "defect_correction" || mixing == "reliable_updates", "no such way to mix precisions");
  p.mixing = mixing == "none" ? Mixing::none : mixing == "defect_correction" ? Mixing::defect_correction : Mixing::reliable_updates;
  p.targets = targets, p.maxiter = maxiter, p.restarts = restarts, p.patience = patience;
  p.inner_tol = inner_tol, p.delta = delta, p.inner_maxiter = inner_maxiter, p.cycles = cycles;
  need((inner != nullptr) == (p.mixing != Mixing::none), "mixed precision, and nothing else, needs an inner system");
  const bool adjoint = p.recurrence == Recurrence::cgnr;
  check_system(outer, adjoint && !inner);
  if (inner) {
    check_system(*inner, adjoint);
    need(outer.layout->parity == inner->layout->parity &&
             std::memcmp(outer.layout->extent, inner->layout->extent, sizeof(outer.layout->extent)) == 0,
         "the inner system lives on another lattice");
  }
  need(b.layout->same(*outer.layout), "a handle of another space (lattice, parity or precision)");
  need(!x0 || (x0->layout->same(*outer.layout) && x0->n == b.n), "the start does not fit the source");
  need(targets.size() == size_t(b.n), "one target per column");
  need(maxiter >= 1 && restarts >= 0 && patience >= 1 && inner_maxiter >= 1 && cycles >= 1, "counts must be at least 1");
  const bool told = !callback.is_none();
  auto looked = std::chrono::steady_clock::now();
  SolveAnswer answer;
  {
    nb::gil_scoped_release release;
    answer = solve(outer, inner, p, b, x0, [&](int64_t iteration, const std::vector<double>& residuals) {
      const auto now = std::chrono::steady_clock::now();
      if (!told && now - looked < kPatience) return;
      looked = now;
      nb::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (told) callback(iteration, array_of(residuals, {residuals.size()}));
    });
  }
  std::vector<std::string> reasons;
  for (Why why : answer.reasons) reasons.push_back(name_of(why));
  std::vector<double> flat;
  for (const auto& row : answer.history) flat.insert(flat.end(), row.begin(), row.end());
  nb::dict said;
  said["iterations"] = array_of(answer.iterations, {answer.iterations.size()});
  said["reasons"] = nb::cast(reasons);
  said["history"] = array_of(flat, {answer.history.size(), size_t(b.n)});
  said["applications"] = answer.applications;
  said["outer_applications"] = answer.outer_applications;
  return nb::make_tuple(nb::cast(std::move(answer.x)), said);
}

// Sites of one parity of a full field, and back: same type, any two lane layouts.
template <class R>
void move_parity(const Field& full, const Field& half, bool split, int threads) {
  const Layout &f = *full.layout, &h = *half.layout;
  std::vector<int32_t> where(f.sites);
  for (size_t k = 0; k < f.site.size(); ++k) where[f.site[k]] = int32_t(k);
  parallel(threads, blocks_of(h), [&](int64_t block) {
    const SiteRange range = block_range(h, block);
    for (int64_t s = range.begin; s < range.begin + range.count; ++s)
      for (int lane = 0; lane < h.site_lanes; ++lane) {
        int x[4];
        h.coordinates(h.site[s * h.site_lanes + lane], x);
        const int32_t place = where[((int64_t(x[0]) * f.extent[1] + x[1]) * f.extent[2] + x[2]) * f.extent[3] + x[3]];
        for (int c = 0; c < half.n; ++c) {
          R* a = static_cast<R*>(full.group(c / f.rhs_lanes)) + int64_t(place / f.site_lanes) * 24 * f.lanes +
                 place % f.site_lanes * f.rhs_lanes + c % f.rhs_lanes;
          R* b = static_cast<R*>(half.group(c / h.rhs_lanes)) + s * 24 * h.lanes + lane * h.rhs_lanes + c % h.rhs_lanes;
          for (int k = 0; k < 24; ++k)
            if (split) b[k * h.lanes] = a[k * f.lanes];
            else a[k * f.lanes] = b[k * h.lanes];
        }
      }
  });
}

void move(const Field& full, const Field& half, bool split, int threads) {
  const Layout &f = *full.layout, &h = *half.layout;
  need(f.parity < 0 && h.parity >= 0 && f.storage == h.storage && !f.packed() && std::memcmp(f.extent, h.extent, sizeof(f.extent)) == 0,
       "a full field and one parity of the same lattice and type are needed");
  need(full.n == half.n && threads >= 1, "two handles have different numbers of columns");
  nb::gil_scoped_release release;
  f.is_double ? move_parity<double>(full, half, split, threads) : move_parity<float>(full, half, split, threads);
}

FieldPtr split_parity(const Field& full, std::shared_ptr<Layout> layout, int threads) {
  auto half = std::make_unique<Field>(layout, full.n);
  if (full.n % layout->rhs_lanes) std::memset(half->group(0), 0, half->groups() * layout->group_stride());
  move(full, *half, true, threads);
  return half;
}

FieldPtr join_parity(const Field& even, const Field& odd, std::shared_ptr<Layout> layout, int threads) {
  need(even.layout->parity == 0 && odd.layout->parity == 1, "an even and an odd half are needed");
  auto full = std::make_unique<Field>(layout, even.n);
  if (even.n % layout->rhs_lanes) std::memset(full->group(0), 0, full->groups() * layout->group_stride());
  move(*full, even, false, threads), move(*full, odd, false, threads);
  return full;
}

}  // namespace

void bind_solve(nb::module_& m) {
  nb::class_<System>(m, "System")
      .def("__init__",
           [](System* self, std::shared_ptr<Layout> layout, int threads, std::shared_ptr<PackedDiagonal> before, std::shared_ptr<Hop> first,
              std::shared_ptr<Hop> last, std::shared_ptr<PackedDiagonal> adjoint_before, std::shared_ptr<Hop> adjoint_first,
              std::shared_ptr<Hop> adjoint_last) {
             need(layout && last, "layout and last pass are needed");
             new (self) System{std::move(layout), threads, {std::move(before), std::move(first), std::move(last)},
                               {std::move(adjoint_before), std::move(adjoint_first), std::move(adjoint_last)}};
           },
           "layout"_a, "threads"_a, "before"_a.none(), "first"_a.none(), "last"_a, "adjoint_before"_a.none(), "adjoint_first"_a.none(),
           "adjoint_last"_a.none());
  m.def("solve", &run, "outer"_a, "inner"_a.none(), "recurrence"_a, "mixing"_a, "targets"_a, "maxiter"_a, "restarts"_a, "patience"_a,
        "inner_tol"_a, "delta"_a, "inner_maxiter"_a, "cycles"_a, "b"_a, "x0"_a.none(), "callback"_a.none());
  m.def("split_parity", &split_parity, "full"_a, "layout"_a, "threads"_a);
  m.def("join_parity", &join_parity, "even"_a, "odd"_a, "layout"_a, "threads"_a);
}

}  // namespace lqcd_native
