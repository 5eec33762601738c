// What Python sees. Every size, layout and alias is checked here; below nothing is.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/complex.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <complex>
#include <cstring>
#include <stdexcept>
#include <utility>


#include "bind.h"
#include "kernels.h"
#include "layout.h"
#include "threads.h"
#include "vectors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lqcd_native {
namespace {

// -- instruction sets --------------------------------------------------------------------------------------------------

struct IsaEntry {
  const char* name;
  const KernelTable* (*table)();
  bool (*runs)();
};

const IsaEntry kIsas[] = {  // best first
#if defined(__x86_64__)
#if defined(LQCD_HAVE_avx512)
    {"avx512", lqcd_native_kernels_avx512,
     [] {
       return bool(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("fma"));
     }},
#endif
#if defined(LQCD_HAVE_avx2)
    {"avx2", lqcd_native_kernels_avx2,
     [] { return bool(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")); }},
#endif
    {"baseline", lqcd_native_kernels_baseline, [] { return bool(__builtin_cpu_supports("sse4.2")); }},
#else
    {"baseline", lqcd_native_kernels_baseline, [] { return true; }},
#endif
};

std::vector<std::string> isas(bool runnable) {
  std::vector<std::string> names;
  for (const auto& isa : kIsas)
    if (!runnable || isa.runs()) names.push_back(isa.name);
  return names;
}

const KernelTable* find_kernels(const std::string& name) {
  for (const auto& isa : kIsas)
    if (name == isa.name) {
      need(isa.runs(), "this processor does not run that instruction set");
      return isa.table();
    }
  throw std::invalid_argument("no such instruction set in this build");
}

// Peak rates of this machine with the kernels' own instructions: what `bench.py` sets beside its figures. Bytes are those
// the program asks for; a store also reads its line first unless it goes around the cache.
nb::dict measure_machine(const std::string& isa, int threads) {
  const KernelTable* kernels = find_kernels(isa);
  need(threads >= 1, "threads must be at least 1");
  const auto best = [](auto&& f) {
    double seconds = 1e30;
    for (int k = 0; k < 5; ++k) {
      const auto start = std::chrono::steady_clock::now();
      f();
      seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return seconds;
  };
  nb::dict found;
  volatile double sink = 0;
  const int64_t rounds = 4000000;
  for (const auto& [name, ops] : {std::pair("multiply-add single GFLOP/s", &kernels->f32), std::pair("multiply-add double GFLOP/s", &kernels->f64)}) {
    const double t = best([&] { parallel(threads, threads, [&](int64_t) { sink = sink + ops->multiply_adds(rounds); }); });
    found[name] = 24.0 * ops->lanes * rounds * threads / t / 1e9;
  }
  const Ops& ops = kernels->f64;
  for (const auto& [name, mib] : {std::pair("memory", 512), std::pair("256 KiB a thread", 0)}) {
    const int64_t bytes = mib ? int64_t(mib) << 20 : int64_t(128) << 10;  // of each of two arrays
    const int64_t nv = bytes / (24 * ops.lanes * 8) / threads, chunk = nv * 24 * ops.lanes * 8;
    Block x(mib ? bytes : bytes * threads), y(mib ? bytes : bytes * threads), a(2 * 64);
    const int64_t each = mib ? nv : bytes / (24 * ops.lanes * 8), step = mib ? chunk : bytes;
    std::memset(a.data(), 0, 128);
    const auto at = [&](Block& b, int64_t k) { return static_cast<char*>(b.data()) + k * step; };
    parallel(threads, threads, [&](int64_t k) { std::memset(at(x, k), 0, each * 24 * ops.lanes * 8), std::memset(at(y, k), 0, each * 24 * ops.lanes * 8); });
    const int repeat = mib ? 1 : 2000;
    double sums[kMaxLanes * 64];
    const double read = best([&] {
      parallel(threads, threads, [&](int64_t k) { for (int r = 0; r < repeat; ++r) ops.norm2(each, at(x, k), sums + k % 32 * 16); });
    });
    const double update = best([&] {
      parallel(threads, threads, [&](int64_t k) { for (int r = 0; r < repeat; ++r) ops.axpy(each, a.data(), true, at(x, k), at(y, k)); });
    });
    const double moved = double(each) * 24 * ops.lanes * 8 * threads * repeat / 1e9;
    found[(std::string(name) + ", read GB/s").c_str()] = moved / read;
    found[(std::string(name) + ", y += a x GB/s").c_str()] = 3 * moved / update;
  }
  return found;
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Kernels and memory of the backend `native`.";
  m.def("instruction_sets", &isas, "runnable"_a = true, "Names of the instruction sets, best first.");
  m.def("measure_machine", &measure_machine, "isa"_a, "threads"_a = 1);
#if defined(__clang__)
  m.attr("compiler") = "clang " __clang_version__;
#else
  m.attr("compiler") = "gcc " __VERSION__;
#endif

  nb::class_<Layout>(m, "Layout", nb::is_weak_referenceable())
      .def("__init__",
           [](Layout* self, std::vector<int> extents, int parity, const std::string& storage, const std::string& isa) {
             new (self) Layout(std::move(extents), parity, storage_of(storage), find_kernels(isa));
           },
           "extents"_a, "parity"_a, "storage"_a, "isa"_a)
      .def("describe", &Layout::describe)
      .def("groups", &Layout::groups)
      .def_prop_ro("isa", [](const Layout& l) { return l.kernels->name; })
      .def_ro("lanes", &Layout::lanes)
      .def_ro("site_lanes", &Layout::site_lanes)
      .def_ro("rhs_lanes", &Layout::rhs_lanes)
      .def_ro("vsites", &Layout::vsites)
      .def_ro("per_slice", &Layout::per_slice)
      .def_prop_ro("site_bytes", &Layout::site_bytes)
      .def_prop_ro("link_bytes", [](const Layout& l) { return l.number_bytes() * l.lanes * 144; })
      .def_prop_ro("group_bytes", &Layout::group_stride);

  nb::class_<Field>(m, "Field").def_prop_ro("n", [](const Field& f) { return f.n; });
  nb::class_<PackedLinks>(m, "PackedLinks", nb::is_weak_referenceable())
      .def_ro("two_rows", &PackedLinks::two_rows)
      .def_ro("deviation", &PackedLinks::deviation)
      .def_prop_ro("bytes", [](const PackedLinks& l) { return l.block->bytes(); });
  nb::class_<PackedDiagonal>(m, "PackedDiagonal", nb::is_weak_referenceable());

  using C64 = std::complex<float>;
  using C128 = std::complex<double>;
  const auto nogil = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<Algebra>(m, "Algebra")
      .def(nb::init<std::shared_ptr<Layout>, int>(), "layout"_a, "threads"_a)
      .def_prop_ro("layout", &Algebra::layout)
      .def("pack", &Algebra::pack<C64>, nb::arg().noconvert())
      .def("pack", &Algebra::pack<C128>, nb::arg().noconvert())
      .def("unpack", &Algebra::unpack)
      .def("zeros", &Algebra::zeros, nogil)
      .def("copy", &Algebra::copy, nogil)
      .def("gamma5", &Algebra::gamma5, nogil)
      .def("axpy", &Algebra::axpy)
      .def("xpay", &Algebra::xpay)
      .def("scale", &Algebra::scale)
      .def("inner", &Algebra::inner)
      .def("inner_slices", &Algebra::inner_slices)
      .def("norm2", &Algebra::norm2)
      .def("axpy_norm2", &Algebra::axpy_norm2)
      .def("cg_update", &Algebra::cg_update)
      .def("norm2_slices", &Algebra::norm2_slices)
      .def("axpy_norm2_slices", &Algebra::axpy_norm2_slices)
      .def("cg_update_slices", &Algebra::cg_update_slices)
      .def("take", &Algebra::take)
      .def("put", &Algebra::put)
      .def("convert", &Algebra::convert)
      .def("links", &Algebra::links<C64>, nb::arg().noconvert(), "phases"_a, "coefficients"_a, "two_rows"_a = false)
      .def("links", &Algebra::links<C128>, nb::arg().noconvert(), "phases"_a, "coefficients"_a, "two_rows"_a = false)
      .def("scalar_diagonal", &Algebra::scalar_diagonal)
      .def("block_diagonal", &Algebra::block_diagonal, nb::arg().noconvert(), "scalar"_a, "twist"_a, "hermitian"_a)
      .def("apply_diagonal", &Algebra::apply_diagonal, nogil);

  nb::class_<Hop>(m, "Hop")
      .def(nb::init<std::shared_ptr<PackedLinks>, std::shared_ptr<Layout>, int, std::shared_ptr<PackedDiagonal>, bool, int, int,
                    int, int, int>(),
           "links"_a, "source"_a, "epilogue"_a, "diagonal"_a.none(), "dagger"_a, "threads"_a, "block"_a, "tile"_a, "stream"_a,
           "prefetch"_a)
      .def("__call__", &Hop::apply, "x"_a, "minuend"_a.none() = nb::none())
      .def("faces", &Hop::faces, "x"_a)
      .def("interior", &Hop::interior, "x"_a)
      .def("exterior", &Hop::exterior, "x"_a, "partial"_a, "below"_a, "above"_a);

  bind_solve(m);
  bind_gauge(m);

  m.attr("PLAIN") = int(plain);
  m.attr("TIMES_DIAGONAL") = int(times_diagonal);
  m.attr("DIAGONAL_MINUS") = int(diagonal_minus);
  m.attr("ONE_MINUS") = int(one_minus);
}

}  // namespace lqcd_native
