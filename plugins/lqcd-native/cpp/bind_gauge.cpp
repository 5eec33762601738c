// Gauge kernels as Python sees them: host arrays in, new host arrays out. Every size is checked here.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <complex>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind.h"
#include "exact.h"
#include "gauge.h"
#include "threads.h"

namespace lqcd_native {

using namespace nb::literals;

namespace {

using C64 = std::complex<float>;
using C128 = std::complex<double>;
template <class C>
using In = nb::ndarray<const C, nb::c_contig, nb::device::cpu>;

constexpr int64_t kSites = 256;  // of one task; part of what defines the bits of a sum

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

const GaugeOps* find_ops(const std::string& isa) {
#if defined(LQCD_HAVE_avx512)
  if (isa == "avx512") return lqcd_native_gauge_avx512();
#endif
#if defined(LQCD_HAVE_avx2)
  if (isa == "avx2") return lqcd_native_gauge_avx2();
#endif
  require(isa == "baseline", "no such instruction set in this build");
  return lqcd_native_gauge_baseline();
}

template <class C>
LinkView view_of(const In<C>& u) {
  require(u.ndim() == 7 && u.shape(4) == 4 && u.shape(5) == 3 && u.shape(6) == 3, "links need the shape (T, Z, Y, X, 4, 3, 3)");
  LinkView view{u.data(), sizeof(C) == 16, {}};
  for (int mu = 0; mu < 4; ++mu) {
    require(u.shape(mu) >= 1 && u.shape(mu) < (size_t(1) << 31), "an extent is out of range");
    view.extent[mu] = int32_t(u.shape(mu));
  }
  return view;
}

int64_t volume(const LinkView& u) { return int64_t(u.extent[0]) * u.extent[1] * u.extent[2] * u.extent[3]; }

// A new complex array and where its numbers go.
struct Out {
  Out(size_t count) : data(new C128[count]) {}
  double* reals() const { return reinterpret_cast<double*>(data); }
  nb::object array(const std::vector<size_t>& shape) {
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<C128*>(p); });
    C128* given = data;
    data = nullptr;
    return nb::cast(nb::ndarray<nb::numpy, C128>(given, shape.size(), shape.data(), owner));
  }
  ~Out() { delete[] data; }
  C128* data;
};

class Gauge {
 public:
  Gauge(const std::string& isa, int threads) : ops_(find_ops(isa)), threads_(threads) { require(threads >= 1, "threads must be at least 1"); }

  template <class C>
  nb::object plaquettes(const In<C>& links) const {
    const LinkView u = view_of(links);
    const int64_t tasks = (volume(u) + kSites - 1) / kSites;
    std::vector<double> partial(6 * tasks), out(6);
    {
      nb::gil_scoped_release release;
      each(volume(u), [&](int64_t begin, int64_t end) { ops_->plaquettes(u, begin, end, &partial[begin / kSites * 6]); });
      for (int p = 0; p < 6; ++p) out[p] = exact_sum(&partial[p], tasks, 6);
    }
    return array_of(out, {size_t(6)});
  }

  template <class C>
  nb::object staple(const In<C>& links, int mu) const {
    const LinkView u = view_of(links);
    require(mu >= 0 && mu < 4, "a direction is 0 to 3");
    Out out(volume(u) * 9);
    {
      nb::gil_scoped_release release;
      each(volume(u), [&](int64_t begin, int64_t end) { ops_->staple(u, mu, begin, end, out.reals()); });
    }
    return out.array({links.shape(0), links.shape(1), links.shape(2), links.shape(3), 3, 3});
  }

  template <class C>
  nb::object clover(const In<C>& links, const In<C128>& spin) const {
    const LinkView u = view_of(links);
    require(spin.ndim() == 4 && spin.shape(0) == 6 && spin.shape(1) == 2 && spin.shape(2) == 2 && spin.shape(3) == 2,
            "spin matrices need the shape (6, 2, 2, 2)");
    Out out(volume(u) * 72);
    {
      nb::gil_scoped_release release;
      each(volume(u), [&](int64_t begin, int64_t end) {
        ops_->clover(u, reinterpret_cast<const double*>(spin.data()), begin, end, out.reals());
      });
    }
    return out.array({links.shape(0), links.shape(1), links.shape(2), links.shape(3), 2, 6, 6});
  }

  // links[mu][parity], forward[parity][mu] and backward[parity][mu] as lists of lists of arrays; the staple of one half.
  nb::object half_staple(nb::list links, nb::list forward, nb::list backward, int mu, int parity) const {
    require(mu >= 0 && mu < 4 && (parity == 0 || parity == 1), "a direction is 0 to 3, a parity 0 or 1");
    HalfLinks u{};
    std::vector<In<C128>> arrays;
    std::vector<In<int64_t>> tables;
    for (int d = 0; d < 4; ++d)
      for (int p = 0; p < 2; ++p) {
        arrays.push_back(nb::cast<In<C128>>(links[d][p]));
        const auto& a = arrays.back();
        require(a.ndim() == 3 && a.shape(0) == 3 && a.shape(1) == 3, "a half needs the shape (3, 3, sites)");
        if (u.sites == 0) u.sites = int64_t(a.shape(2));
        require(int64_t(a.shape(2)) == u.sites, "the halves differ in size");
        u.half[d][p] = reinterpret_cast<const double*>(a.data());
        for (bool ahead : {true, false}) {
          tables.push_back(nb::cast<In<int64_t>>((ahead ? forward : backward)[p][d]));
          const auto& t = tables.back();
          require(t.ndim() == 1 && int64_t(t.shape(0)) == u.sites, "a table of neighbours does not fit");
          for (int64_t k = 0; k < u.sites; ++k) require(t.data()[k] >= 0 && t.data()[k] < u.sites, "a neighbour is out of range");
          (ahead ? u.forward : u.backward)[p][d] = t.data();
        }
      }
    require(u.sites >= 1, "a half has at least one site");
    Out out(u.sites * 9);
    {
      nb::gil_scoped_release release;
      each(u.sites, [&](int64_t begin, int64_t end) {  // site last: a piece goes through a buffer of its own
        const int64_t count = end - begin;
        std::vector<double> piece(count * 18);
        ops_->half_staple(u, mu, parity, begin, end, piece.data());
        for (int e = 0; e < 9; ++e)
          std::copy(&piece[2 * e * count], &piece[2 * e * count] + 2 * count, out.reals() + 2 * (e * u.sites + begin));
      });
    }
    return out.array({3, 3, size_t(u.sites)});
  }

  nb::object invert(const In<C128>& blocks) const {
    const int64_t count = matrices(blocks, 6);
    Out out(count * 36);
    std::atomic<bool> regular{true};
    {
      nb::gil_scoped_release release;
      each(count, [&](int64_t begin, int64_t end) {
        if (!ops_->invert(reals(blocks), out.reals(), begin, end)) regular = false;
      });
    }
    return regular ? out.array(shape_of(blocks)) : nb::none();
  }

  nb::object exponential(const In<C128>& a) const {
    const int64_t count = matrices(a, 3);
    Out out(count * 9);
    {
      nb::gil_scoped_release release;
      each(count, [&](int64_t begin, int64_t end) { ops_->exponential(reals(a), out.reals(), begin, end); });
    }
    return out.array(shape_of(a));
  }

  // (matrices, 0), or (None, 1) if one is not finite, (None, 2) if one is singular
  nb::tuple project(const In<C128>& a) const {
    const int64_t count = matrices(a, 3);
    Out out(count * 9);
    std::atomic<int> worst{0};
    {
      nb::gil_scoped_release release;
      each(count, [&](int64_t begin, int64_t end) {
        const int found = ops_->project(reals(a), out.reals(), begin, end);
        for (int now = worst; found && (now == 0 || found < now) && !worst.compare_exchange_weak(now, found);) {
        }
      });
    }
    return worst ? nb::make_tuple(nb::none(), int(worst)) : nb::make_tuple(out.array(shape_of(a)), 0);
  }

 private:
  template <class F>
  void each(int64_t count, F&& f) const {
    parallel(count < 2 * kSites ? 1 : threads_, (count + kSites - 1) / kSites,
             [&](int64_t task) { f(task * kSites, std::min(count, (task + 1) * kSites)); });
  }

  static const double* reals(const In<C128>& a) { return reinterpret_cast<const double*>(a.data()); }
  static std::vector<size_t> shape_of(const In<C128>& a) {
    std::vector<size_t> shape;
    for (size_t k = 0; k < a.ndim(); ++k) shape.push_back(a.shape(k));
    return shape;
  }
  static int64_t matrices(const In<C128>& a, size_t n) {
    require(a.ndim() >= 2 && a.shape(a.ndim() - 1) == n && a.shape(a.ndim() - 2) == n, "the last two axes must be square of the right size");
    return int64_t(a.size() / (n * n));
  }

  const GaugeOps* ops_;
  int threads_;
};

}  // namespace

void bind_gauge(nb::module_& m) {
  nb::class_<Gauge>(m, "Gauge")
      .def(nb::init<const std::string&, int>(), "isa"_a, "threads"_a)
      .def("plaquettes", &Gauge::plaquettes<C64>, nb::arg().noconvert())
      .def("plaquettes", &Gauge::plaquettes<C128>, nb::arg().noconvert())
      .def("staple", &Gauge::staple<C64>, nb::arg().noconvert(), "mu"_a)
      .def("staple", &Gauge::staple<C128>, nb::arg().noconvert(), "mu"_a)
      .def("clover", &Gauge::clover<C64>, nb::arg().noconvert(), "spin"_a)
      .def("clover", &Gauge::clover<C128>, nb::arg().noconvert(), "spin"_a)
      .def("half_staple", &Gauge::half_staple)
      .def("invert", &Gauge::invert, nb::arg().noconvert())
      .def("exponential", &Gauge::exponential, nb::arg().noconvert())
      .def("project", &Gauge::project, nb::arg().noconvert());
}

}  // namespace lqcd_native
