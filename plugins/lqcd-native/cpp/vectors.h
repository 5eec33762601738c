// Vectors of one layout and the hop between layouts, as Python and the solvers use them.
//
// Every size, layout and alias is checked here; below nothing is. What takes no Python object (`each`, `sums`, `fold`, the
// `..._into` functions, `Hop::run`) needs no GIL and leaves it alone, so that a whole solve can run without it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <complex>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "exact.h"
#include "kernels.h"
#include "layout.h"
#include "threads.h"

namespace lqcd_native {

namespace nb = nanobind;

using FieldPtr = std::unique_ptr<Field>;
using Scalars = nb::ndarray<const std::complex<double>, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class C>
using Host = nb::ndarray<const C, nb::c_contig, nb::device::cpu>;

inline void need(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

// -- moving data between host order and a layout -----------------------------------------------------------------------

constexpr int64_t kBlock = 32;  // vector sites summed in one go; part of what defines the bits of a sum

// Blocks of a layout; none straddles two time slices.
struct SiteRange {
  int64_t begin, count;
};
inline int64_t blocks_per_slice(const Layout& l) { return (l.per_slice + kBlock - 1) / kBlock; }
inline int64_t blocks_of(const Layout& l) { return l.extent[0] * blocks_per_slice(l); }
inline SiteRange block_range(const Layout& l, int64_t block) {
  const int64_t per = blocks_per_slice(l), begin = block % per * kBlock;
  return {block / per * l.per_slice + begin, std::min(kBlock, l.per_slice - begin)};
}

template <class From, class To>
void scatter_sites(const Layout& l, const From* host, int n, Field& out, int threads) {
  const int64_t blocks = (l.vsites + kBlock - 1) / kBlock;
  parallel(threads, blocks, [&](int64_t block) {
    const int64_t end = std::min(l.vsites, (block + 1) * kBlock);
    for (int g = 0; g < out.groups(); ++g)
      for (int64_t s = block * kBlock; s < end; ++s) {
        To* to = static_cast<To*>(out.group(g)) + s * 24 * l.lanes;
        for (int lane = 0; lane < l.lanes; ++lane) {
          const int column = g * l.rhs_lanes + lane % l.rhs_lanes;
          if (column >= n) {
            for (int k = 0; k < 24; ++k) to[k * l.lanes + lane] = 0;
            continue;
          }
          const From* from = host + (int64_t(column) * l.sites + l.site[s * l.site_lanes + lane / l.rhs_lanes]) * 24;
          for (int k = 0; k < 24; ++k) to[k * l.lanes + lane] = static_cast<To>(from[k]);
        }
      }
  });
}

template <class R>
void gather_sites(const Layout& l, const Field& in, R* host, int threads) {
  const int64_t blocks = (l.vsites + kBlock - 1) / kBlock;
  parallel(threads, blocks, [&](int64_t block) {
    const int64_t end = std::min(l.vsites, (block + 1) * kBlock);
    for (int g = 0; g < in.groups(); ++g)
      for (int64_t s = block * kBlock; s < end; ++s) {
        const R* from = static_cast<const R*>(in.group(g)) + s * 24 * l.lanes;
        for (int lane = 0; lane < l.lanes; ++lane) {
          const int column = g * l.rhs_lanes + lane % l.rhs_lanes;
          if (column >= in.n) continue;
          R* to = host + (int64_t(column) * l.sites + l.site[s * l.site_lanes + lane / l.rhs_lanes]) * 24;
          for (int k = 0; k < 24; ++k) to[k] = from[k * l.lanes + lane];
        }
      }
  });
}

// From one layout to another of the same lattice and parity, rounding once.
template <class From, class To>
void convert_sites(const Layout& from_layout, const Field& in, const Layout& l, Field& out, int threads) {
  std::vector<int32_t> where(l.sites);  // canonical site -> its place in the source
  for (size_t k = 0; k < from_layout.site.size(); ++k) where[from_layout.site[k]] = int32_t(k);
  const int64_t blocks = (l.vsites + kBlock - 1) / kBlock;
  const int fl = from_layout.lanes;
  parallel(threads, blocks, [&](int64_t block) {
    const int64_t end = std::min(l.vsites, (block + 1) * kBlock);
    for (int g = 0; g < out.groups(); ++g)
      for (int64_t s = block * kBlock; s < end; ++s) {
        To* to = static_cast<To*>(out.group(g)) + s * 24 * l.lanes;
        for (int lane = 0; lane < l.lanes; ++lane) {
          const int column = g * l.rhs_lanes + lane % l.rhs_lanes;
          if (column >= in.n) {
            for (int k = 0; k < 24; ++k) to[k * l.lanes + lane] = 0;
            continue;
          }
          const int32_t place = where[l.site[s * l.site_lanes + lane / l.rhs_lanes]];
          const int from_lane = place % from_layout.site_lanes * from_layout.rhs_lanes + column % from_layout.rhs_lanes;
          const From* from = static_cast<const From*>(in.group(column / from_layout.rhs_lanes)) +
                             int64_t(place / from_layout.site_lanes) * 24 * fl + from_lane;
          for (int k = 0; k < 24; ++k) to[k * l.lanes + lane] = static_cast<To>(from[k * fl]);
        }
      }
  });
}

// V[a][b] = c phase U / 2 (forward) or its adjoint from the neighbour behind, in the order of HopArgs::links.
template <class From, class To>
void pack_links(const Layout& l, const std::complex<From>* u, const std::complex<double>* phases, const double* coefficients,
                void* out, int threads) {
  const int64_t blocks = (l.vsites + kBlock - 1) / kBlock;
  parallel(threads, blocks, [&](int64_t block) {
    const int64_t end = std::min(l.vsites, (block + 1) * kBlock);
    for (int64_t s = block * kBlock; s < end; ++s) {
      To* to = static_cast<To*>(out) + s * 144 * l.lanes;
      for (int lane = 0; lane < l.lanes; ++lane) {
        int x[4];
        l.coordinates(l.site[s * l.site_lanes + lane / l.rhs_lanes], x);
        for (int d = 0; d < 8; ++d) {
          const int mu = d / 2;
          const bool back = d % 2;
          int y[4] = {x[0], x[1], x[2], x[3]};
          if (back) y[mu] = (y[mu] + l.extent[mu] - 1) % l.extent[mu];
          const int64_t site = ((int64_t(y[0]) * l.extent[1] + y[1]) * l.extent[2] + y[2]) * l.extent[3] + y[3];
          const std::complex<From>* link = u + (site * 4 + mu) * 9;
          const bool edge = y[mu] == l.extent[mu] - 1;
          for (int a = 0; a < 3; ++a)
            for (int b = 0; b < 3; ++b) {
              std::complex<double> v(back ? link[b * 3 + a] : link[a * 3 + b]);
              v *= coefficients[mu];
              if (edge && phases[mu] != 1.0) v *= phases[mu];
              if (back) v = std::conj(v);
              To* entry = to + ((d * 3 + b) * 3 + a) * 2 * l.lanes + lane;
              entry[0] = static_cast<To>(0.5 * v.real());
              entry[l.lanes] = static_cast<To>(0.5 * v.imag());
            }
        }
      }
    }
  });
}

template <class To>
void pack_blocks(const Layout& l, const std::complex<double>* b, double scalar, bool hermitian, void* out, int threads) {
  const int count = hermitian ? 36 : 72;
  const int64_t blocks = (l.vsites + kBlock - 1) / kBlock;
  parallel(threads, blocks, [&](int64_t block) {
    const int64_t end = std::min(l.vsites, (block + 1) * kBlock);
    for (int64_t s = block * kBlock; s < end; ++s)
      for (int c = 0; c < 2; ++c) {
        To* to = static_cast<To*>(out) + (s * 2 + c) * count * l.lanes;
        for (int lane = 0; lane < l.lanes; ++lane) {
          const std::complex<double>* m = b + (int64_t(l.site[s * l.site_lanes + lane / l.rhs_lanes]) * 2 + c) * 36;
          int k = 0;
          const auto put = [&](double v) { to[k++ * l.lanes + lane] = static_cast<To>(v); };
          if (hermitian) {
            for (int i = 0; i < 6; ++i) put(m[7 * i].real() + scalar);
            for (int i = 1; i < 6; ++i)
              for (int j = 0; j < i; ++j) put(m[6 * i + j].real()), put(m[6 * i + j].imag());
          } else {
            for (int i = 0; i < 36; ++i) put(m[i].real()), put(m[i].imag());
          }
        }
      }
  });
}

// -- vectors of one layout ---------------------------------------------------------------------------------------------

constexpr int64_t kSmall = 1024;  // sites times columns below which waking a thread costs more than it brings

class Algebra {
 public:
  Algebra(std::shared_ptr<Layout> layout, int threads) : layout_(std::move(layout)), threads_(threads) {
    need(threads >= 1, "threads must be at least 1");
  }

  const std::shared_ptr<Layout>& layout() const { return layout_; }

  template <class C>
  FieldPtr pack(const Host<C>& a) const {
    using R = typename C::value_type;
    const Layout& l = *layout_;
    need(a.ndim() == 7, "an array of spinors has seven axes");
    const int width = l.parity < 0 ? l.extent[3] : l.extent[3] / 2;
    need(a.shape(0) >= 1 && a.shape(0) < (1u << 24), "the number of columns is out of range");
    need(a.shape(1) == size_t(l.extent[0]) && a.shape(2) == size_t(l.extent[1]) && a.shape(3) == size_t(l.extent[2]) &&
             a.shape(4) == size_t(width) && a.shape(5) == 4 && a.shape(6) == 3,
         "the array does not fit the lattice");
    const int n = int(a.shape(0));
    auto out = std::make_unique<Field>(layout_, n);
    nb::gil_scoped_release release;
    const R* host = reinterpret_cast<const R*>(a.data());
    l.is_double ? scatter_sites<R, double>(l, host, n, *out, threads_for(n)) : scatter_sites<R, float>(l, host, n, *out, threads_for(n));
    return out;
  }

  nb::object unpack(const Field& x) const {
    check(x);
    return layout_->is_double ? unpack_as<double>(x) : unpack_as<float>(x);
  }

  FieldPtr zeros(int n) const {
    need(n >= 1, "a handle has at least one column");
    auto out = std::make_unique<Field>(layout_, n);
    each(n, [&](int g, int64_t begin, int64_t nv, int64_t) { std::memset(at(*out, g, begin), 0, bytes(nv)); });
    return out;
  }

  FieldPtr copy(const Field& x) const {
    check(x);
    auto out = std::make_unique<Field>(layout_, x.n);
    each(x.n, [&](int g, int64_t begin, int64_t nv, int64_t) { std::memcpy(at(*out, g, begin), at(x, g, begin), bytes(nv)); });
    return out;
  }

  FieldPtr gamma5(const Field& x) const {
    check(x);
    auto out = std::make_unique<Field>(layout_, x.n);
    each(x.n, [&](int g, int64_t begin, int64_t nv, int64_t) { layout_->ops().gamma5(nv, at(x, g, begin), at(*out, g, begin)); });
    return out;
  }

  void axpy(const Scalars& a, const Field& x, Field& y) const {
    check(x), check(y), check_pair(x, y);
    const Factors f(*layout_, a, x.n);
    nb::gil_scoped_release release;
    each(x.n, [&](int g, int64_t b, int64_t nv, int64_t) { layout_->ops().axpy(nv, f.of(g), f.real, at(x, g, b), at(y, g, b)); });
  }

  void xpay(const Field& x, const Scalars& a, Field& y) const {
    check(x), check(y), check_pair(x, y);
    const Factors f(*layout_, a, x.n);
    nb::gil_scoped_release release;
    each(x.n, [&](int g, int64_t b, int64_t nv, int64_t) { layout_->ops().xpay(nv, f.of(g), f.real, at(x, g, b), at(y, g, b)); });
  }

  void scale(const Scalars& a, Field& x) const {
    check(x);
    const Factors f(*layout_, a, x.n);
    nb::gil_scoped_release release;
    each(x.n, [&](int g, int64_t b, int64_t nv, int64_t) { layout_->ops().scale(nv, f.of(g), f.real, at(x, g, b)); });
  }

  nb::object inner_slices(const Field& x, const Field& y) const {
    const std::vector<double> slices = dot_slices(x, y);
    auto* data = new std::complex<double>[slices.size() / 2];
    std::memcpy(static_cast<void*>(data), slices.data(), slices.size() * 8);
    return array(data, {size_t(x.n), size_t(layout_->extent[0])});
  }

  nb::object inner(const Field& x, const Field& y) const {
    const std::vector<double> slices = dot_slices(x, y);
    const size_t t = layout_->extent[0];
    auto* data = new std::complex<double>[x.n];
    for (int c = 0; c < x.n; ++c)
      data[c] = {exact_sum(&slices[c * t * 2], t, 2), exact_sum(&slices[c * t * 2 + 1], t, 2)};
    return array(data, {size_t(x.n)});
  }

  nb::object norm2(const Field& x) const {
    check(x);
    std::vector<double> slices;
    {
      nb::gil_scoped_release release;
      slices = sums(x.n, 1, [&](int g, int64_t b, int64_t nv, double* s) { layout_->ops().norm2(nv, at(x, g, b), s); });
    }
    return totals(slices, x.n);
  }

  nb::object axpy_norm2(const Scalars& a, const Field& x, Field& y) const {
    check(x), check(y), check_pair(x, y);
    const Factors f(*layout_, a, x.n);
    std::vector<double> slices;
    {
      nb::gil_scoped_release release;
      slices = sums(x.n, 1, [&](int g, int64_t b, int64_t nv, double* s) {
        layout_->ops().axpy_norm2(nv, f.of(g), f.real, at(x, g, b), at(y, g, b), s);
      });
    }
    return totals(slices, x.n);
  }

  nb::object cg_update(const Scalars& a, const Field& p, const Field& ap, Field& x, Field& r) const {
    check(p), check(ap), check(x), check(r);
    check_pair(p, x), check_pair(p, r), check_pair(ap, x), check_pair(ap, r), check_pair(x, r);
    const Factors f(*layout_, a, p.n);
    std::vector<double> slices;
    {
      nb::gil_scoped_release release;
      slices = sums(p.n, 1, [&](int g, int64_t b, int64_t nv, double* s) {
        layout_->ops().cg_update(nv, f.of(g), f.real, at(p, g, b), at(ap, g, b), at(x, g, b), at(r, g, b), s);
      });
    }
    return totals(slices, p.n);
  }

  FieldPtr take(const Field& x, const std::vector<int>& columns) const {
    check(x);
    need(!columns.empty(), "take needs at least one column");
    for (int c : columns) need(c >= 0 && c < x.n, "a column is out of range");
    auto out = zeros_if_padded(int(columns.size()));
    nb::gil_scoped_release release;
    take_into(x, columns, *out);
    return out;
  }

  void put(Field& x, const std::vector<int>& columns, const Field& part) const {
    check(x), check(part);
    need(&x != &part, "x and part are one handle");
    need(int(columns.size()) == part.n, "put needs as many columns as part has");
    for (int c : columns) need(c >= 0 && c < x.n, "a column is out of range");
    nb::gil_scoped_release release;
    put_into(x, columns, part);
  }

  FieldPtr convert(const Field& x) const {
    const Layout &from = *x.layout, &to = *layout_;
    need(from.parity == to.parity && std::memcmp(from.extent, to.extent, sizeof(to.extent)) == 0,
         "the two handles live on different lattices");
    auto out = std::make_unique<Field>(layout_, x.n);
    nb::gil_scoped_release release;
    convert_into(x, *out);
    return out;
  }

  template <class C>
  std::shared_ptr<PackedLinks> links(const Host<C>& u, const std::vector<std::complex<double>>& phases,
                                     const std::vector<double>& coefficients) const {
    const Layout& l = *layout_;
    need(u.ndim() == 7, "an array of links has seven axes");
    for (int mu = 0; mu < 4; ++mu) need(u.shape(mu) == size_t(l.extent[mu]), "the links do not fit the lattice");
    need(u.shape(4) == 4 && u.shape(5) == 3 && u.shape(6) == 3, "links need the shape (T, Z, Y, X, 4, 3, 3)");
    need(phases.size() == 4 && coefficients.size() == 4, "four phases and four coefficients");
    nb::gil_scoped_release release;
    auto out = std::make_shared<PackedLinks>();
    out->layout = layout_;
    out->block = std::make_unique<Block>(size_t(l.vsites) * 144 * l.lanes * l.real_bytes());
    using R = typename C::value_type;
    if (l.is_double)
      pack_links<R, double>(l, u.data(), phases.data(), coefficients.data(), out->block->data(), threads_);
    else
      pack_links<R, float>(l, u.data(), phases.data(), coefficients.data(), out->block->data(), threads_);
    return out;
  }

  std::shared_ptr<PackedDiagonal> scalar_diagonal(std::complex<double> s, double twist) const {
    auto out = std::make_shared<PackedDiagonal>();
    out->layout = layout_;
    const std::complex<double> i(0, 1), up = s + i * twist, down = s - i * twist;
    out->args = {DiagonalArgs::scalar, {up.real(), up.imag()}, {down.real(), down.imag()}, 0.0, nullptr};
    return out;
  }

  // Blocks (sites, 2, 6, 6) in canonical order of this parity.
  std::shared_ptr<PackedDiagonal> block_diagonal(const Host<std::complex<double>>& b, double scalar, double twist,
                                                 bool hermitian) const {
    const Layout& l = *layout_;
    need(b.ndim() == 4 && b.shape(0) == size_t(l.sites) && b.shape(1) == 2 && b.shape(2) == 6 && b.shape(3) == 6,
         "blocks need the shape (sites, 2, 6, 6)");
    need(hermitian || (scalar == 0 && twist == 0), "general blocks hold everything");
    nb::gil_scoped_release release;
    auto out = std::make_shared<PackedDiagonal>();
    out->layout = layout_;
    out->block = std::make_unique<Block>(size_t(l.vsites) * 2 * (hermitian ? 36 : 72) * l.lanes * l.real_bytes());
    l.is_double ? pack_blocks<double>(l, b.data(), scalar, hermitian, out->block->data(), threads_)
                : pack_blocks<float>(l, b.data(), scalar, hermitian, out->block->data(), threads_);
    out->args = {hermitian ? DiagonalArgs::hermitian : DiagonalArgs::general, {0, 0}, {0, 0}, twist, out->block->data()};
    return out;
  }

  FieldPtr apply_diagonal(const PackedDiagonal& d, const Field& x) const {
    check(x);
    need(d.layout->same(*layout_), "the site-diagonal term was packed for another layout");
    auto out = std::make_unique<Field>(layout_, x.n);
    // One vector site after the other with all columns: blocks are read once.
    const int64_t blocks = (layout_->vsites + kBlock - 1) / kBlock;
    parallel(threads_for(x.n), blocks, [&](int64_t k) {
      const int64_t end = std::min(layout_->vsites, (k + 1) * kBlock);
      for (int g = 0; g < x.groups(); ++g) layout_->ops().diagonal(d.args, x.group(g), out->group(g), k * kBlock, end);
    });
    return out;
  }

  // -- for callers that hold no GIL ------------------------------------------------------------------------------------

  // Scalars of one operation by group, in the layout's own type and lanes: one, or one per column.
  struct Factors {
    Factors(const Layout& l, const Scalars& a, int n) : Factors(l, a.data(), a.shape(0), n) {}
    Factors(const Layout& l, const std::vector<std::complex<double>>& a) : Factors(l, a.data(), a.size(), int(a.size())) {}
    Factors(const Layout& l, const std::complex<double>* a, size_t count, int n) : stride(2 * l.lanes * l.real_bytes()) {
      need(count == 1 || count == size_t(n), "scalars: one, or one per column");
      const int groups = l.groups(n);
      data = std::make_unique<Block>(groups * stride);
      real = true;
      for (size_t k = 0; k < count; ++k) real = real && a[k].imag() == 0;
      for (int g = 0; g < groups; ++g)
        for (int lane = 0; lane < l.lanes; ++lane) {
          const int column = g * l.rhs_lanes + lane % l.rhs_lanes;
          const std::complex<double> v = column < n ? a[count == 1 ? 0 : column] : 0.0;
          write(l, g, lane, v.real()), write(l, g, l.lanes + lane, v.imag());
        }
    }
    void write(const Layout& l, int g, int k, double v) {
      char* to = static_cast<char*>(data->data()) + g * stride;
      l.is_double ? void(reinterpret_cast<double*>(to)[k] = v) : void(reinterpret_cast<float*>(to)[k] = float(v));
    }
    const void* of(int g) const { return static_cast<const char*>(data->data()) + g * stride; }
    size_t stride;
    std::unique_ptr<Block> data;
    bool real;
  };

  int threads_for(int n) const { return layout_->sites * n < kSmall ? 1 : threads_; }
  size_t bytes(int64_t nv) const { return size_t(nv) * 24 * layout_->lanes * layout_->real_bytes(); }
  void* at(const Field& x, int g, int64_t begin) const { return static_cast<char*>(x.group(g)) + bytes(begin); }

  void check(const Field& x) const {
    if (x.layout.get() != layout_.get()) need(x.layout->same(*layout_), "a handle of another space (lattice, parity or precision)");
  }
  static void check_pair(const Field& x, const Field& y) {
    need(&x != &y, "two arguments are one handle: the consumed one must be distinct");
    need(x.n == y.n, "two handles have different numbers of columns");
  }

  // f(group, first vector site, count, task) over all blocks of all groups; a block never straddles two time slices.
  template <class F>
  void each(int n, F&& f) const {
    const int64_t blocks = blocks_of(*layout_);
    parallel(threads_for(n), layout_->groups(n) * blocks, [&](int64_t task) {
      const SiteRange r = block_range(*layout_, task % blocks);
      f(int(task / blocks), r.begin, r.count, task);
    });
  }

  // Reals that partial sums of `parts` numbers a column take: [group][slice][block][part][lane].
  size_t partials(int n, int parts) const { return size_t(layout_->groups(n)) * blocks_of(*layout_) * parts * layout_->lanes; }

  // Sums of `parts` reals per column and slice: lanes, then blocks, in fixed order. Layout [column][slice][part].
  std::vector<double> fold(const double* partial, int n, int parts) const {
    const int64_t per = blocks_per_slice(*layout_), t = layout_->extent[0];
    const int lanes = layout_->lanes, rl = layout_->rhs_lanes;
    std::vector<double> out(size_t(n) * t * parts);
    for (int c = 0; c < n; ++c)
      for (int64_t slice = 0; slice < t; ++slice)
        for (int part = 0; part < parts; ++part) {
          double sum = 0;
          for (int64_t block = 0; block < per; ++block) {
            const double* p = &partial[(((c / rl) * t + slice) * per + block) * parts * lanes + part * lanes];
            double over_lanes = 0;
            for (int s = 0; s < layout_->site_lanes; ++s) over_lanes += p[s * rl + c % rl];
            sum += over_lanes;
          }
          out[(c * t + slice) * parts + part] = sum;
        }
    return out;
  }

  // kernel(group, first vector site, count, partial sums) over all blocks, folded.
  template <class F>
  std::vector<double> sums(int n, int parts, F&& kernel) const {
    std::vector<double> partial(partials(n, parts));
    each(n, [&](int g, int64_t begin, int64_t nv, int64_t task) { kernel(g, begin, nv, &partial[task * parts * layout_->lanes]); });
    return fold(partial.data(), n, parts);
  }

  void take_into(const Field& x, const std::vector<int>& columns, Field& out) const {
    for (size_t k = 0; k < columns.size(); ++k) copy_column(x, columns[k], out, int(k));
  }

  void put_into(Field& x, const std::vector<int>& columns, const Field& part) const {
    for (size_t k = 0; k < columns.size(); ++k) copy_column(part, int(k), x, columns[k]);
  }

  void convert_into(const Field& x, Field& out) const {
    const Layout &from = *x.layout, &to = *layout_;
    const int threads = threads_for(x.n);
    if (from.is_double)
      to.is_double ? convert_sites<double, double>(from, x, to, out, threads) : convert_sites<double, float>(from, x, to, out, threads);
    else
      to.is_double ? convert_sites<float, double>(from, x, to, out, threads) : convert_sites<float, float>(from, x, to, out, threads);
  }

 private:
  std::vector<double> dot_slices(const Field& x, const Field& y) const {
    check(x), check(y);
    need(x.n == y.n, "two handles have different numbers of columns");
    nb::gil_scoped_release release;
    return sums(x.n, 2, [&](int g, int64_t b, int64_t nv, double* s) { layout_->ops().dot(nv, at(x, g, b), at(y, g, b), s); });
  }

  nb::object totals(const std::vector<double>& slices, int n) const {
    const size_t t = layout_->extent[0];
    auto* data = new double[n];
    for (int c = 0; c < n; ++c) data[c] = exact_sum(&slices[c * t], t, 1);
    return array(data, {size_t(n)});
  }

  template <class E>
  static nb::object array(E* data, std::initializer_list<size_t> shape) {
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<E*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, E>(data, shape, owner));
  }

  template <class R>
  nb::object unpack_as(const Field& x) const {
    const Layout& l = *layout_;
    const size_t width = l.parity < 0 ? l.extent[3] : l.extent[3] / 2;
    auto* data = new std::complex<R>[size_t(x.n) * l.sites * 12];
    {
      nb::gil_scoped_release release;
      gather_sites<R>(l, x, reinterpret_cast<R*>(data), threads_for(x.n));
    }
    return array(data, {size_t(x.n), size_t(l.extent[0]), size_t(l.extent[1]), size_t(l.extent[2]), width, 4, 3});
  }

  FieldPtr zeros_if_padded(int n) const {
    if (n % layout_->rhs_lanes) return zeros(n);
    return std::make_unique<Field>(layout_, n);
  }

  void copy_column(const Field& from, int c, Field& to, int d) const {
    const Layout& l = *layout_;
    const int rl = l.rhs_lanes;
    each(1, [&](int, int64_t begin, int64_t nv, int64_t) {
      if (rl == 1) {
        std::memcpy(at(to, d, begin), at(from, c, begin), bytes(nv));
        return;
      }
      const size_t rb = l.real_bytes();
      const char* a = static_cast<const char*>(at(from, c / rl, begin)) + c % rl * rb;
      char* b = static_cast<char*>(at(to, d / rl, begin)) + d % rl * rb;
      for (int64_t k = 0; k < nv * 24 * l.site_lanes; ++k) std::memcpy(b + k * rl * rb, a + k * rl * rb, rb);
    });
  }

  std::shared_ptr<Layout> layout_;
  int threads_;
};

// -- hopping term with its epilogue ------------------------------------------------------------------------------------

class Hop {
 public:
  Hop(std::shared_ptr<PackedLinks> links, std::shared_ptr<Layout> source, int epilogue, std::shared_ptr<PackedDiagonal> diagonal,
      bool dagger, int threads, int block, int tile, int stream)
      : links_(std::move(links)), source_(std::move(source)), diagonal_(std::move(diagonal)), epilogue_(epilogue),
        dagger_(dagger), threads_(threads), block_(block), tile_(tile), stream_(stream) {
    need(links_ && source_, "links and source are needed");
    need(links_->layout->hops_from(*source_), "the source layout does not fit the links");
    need(epilogue >= 0 && epilogue <= 3, "no such epilogue");
    need((epilogue == plain) == !diagonal_, "an epilogue with a site-diagonal term needs one, the plain one takes none");
    need(!diagonal_ || diagonal_->layout->same(*links_->layout), "the site-diagonal term was packed for another layout");
    need(threads >= 1 && block >= 1 && tile >= 1, "threads, block and tile must be at least 1");
  }

  FieldPtr apply(const Field& in, const Field* x) const {
    const auto& layout = links_->layout;
    need(in.layout.get() == source_.get() || in.layout->same(*source_), "a handle of another space (lattice, parity or precision)");
    const bool wants_x = epilogue_ == diagonal_minus || epilogue_ == one_minus;
    if (wants_x && x == nullptr && layout->parity < 0) x = &in;
    need(!wants_x || x != nullptr, "this operator needs the vector it subtracts from");
    need(!x || x->layout->same(*layout), "a handle of another space (lattice, parity or precision)");
    need(!x || x->n == in.n, "two handles have different numbers of columns");
    auto out = std::make_unique<Field>(layout, in.n);
    nb::gil_scoped_release release;
    run(in, x, *out);
    return out;
  }

  const std::shared_ptr<Layout>& source() const { return source_; }
  const std::shared_ptr<Layout>& target() const { return links_->layout; }
  int threads() const { return threads_; }

  // The same into a field that is there; fields fit and x is there if it is needed.
  void run(const Field& in, const Field* x, Field& out) const {
    Call call(*this, in, x, out);
    const auto& layout = links_->layout;
    const int threads = call.threads;
    // Tiles of vector sites in storage order; a thread takes the next one, so a busy core holds nobody up.
    const int64_t tile = std::max<int64_t>(1, std::min<int64_t>(tile_, layout->vsites / threads));
    const auto& ops = layout->ops();
    parallel(threads, (layout->vsites + tile - 1) / tile,
             [&](int64_t k) { ops.hop(call.args, k * tile, std::min(layout->vsites, (k + 1) * tile)); });
  }

  // The same, and after(group, block, range) as soon as a block of a group is stored, while it is in cache.
  template <class F>
  void run(const Field& in, const Field* x, Field& out, F&& after) const {
    Call call(*this, in, x, out);
    const auto& layout = links_->layout;
    call.args.stream = 0;
    const int64_t blocks = blocks_of(*layout), most = (blocks + call.threads - 1) / call.threads;
    const int64_t tile = std::max<int64_t>(1, std::min<int64_t>(tile_ / kBlock, most));
    const int groups = call.args.groups;
    parallel(call.threads, (blocks + tile - 1) / tile, [&](int64_t k) {
      const int64_t end = std::min(blocks, (k + 1) * tile);
      for (int first = 0; first < groups; first += block_) {
        const int last = std::min(groups, first + block_);
        HopArgs a = call.args;
        a.in += first, a.out += first, a.x += first, a.groups = last - first;
        for (int64_t b = k * tile; b < end; ++b) {
          const SiteRange r = block_range(*layout, b);
          layout->ops().hop(a, r.begin, r.begin + r.count);
          for (int g = first; g < last; ++g) after(g, b, r);
        }
      }
    });
  }

 private:
  struct Call {
    Call(const Hop& hop, const Field& in, const Field* x, Field& out) : ins(in.groups()), xs(in.groups()), outs(in.groups()) {
      const auto& layout = hop.links_->layout;
      for (int g = 0; g < in.groups(); ++g) ins[g] = in.group(g), outs[g] = out.group(g), xs[g] = x ? x->group(g) : nullptr;
      args.links = hop.links_->block->data();
      args.nbr = layout->nbr.data(), args.cross = layout->cross.data(), args.lane_map = layout->lane_map.data();
      args.in = ins.data(), args.out = outs.data(), args.x = xs.data();
      args.groups = in.groups(), args.block = hop.block_, args.epilogue = hop.epilogue_, args.dagger = hop.dagger_;
      args.stream = hop.stream_ >= 0 ? hop.stream_ : 0;
      if (hop.diagonal_) args.diagonal = hop.diagonal_->args;
      threads = layout->sites * in.n < kSmall ? 1 : hop.threads_;
    }
    std::vector<const void*> ins, xs;
    std::vector<void*> outs;
    HopArgs args{};
    int threads;
  };

  std::shared_ptr<PackedLinks> links_;
  std::shared_ptr<Layout> source_;
  std::shared_ptr<PackedDiagonal> diagonal_;
  int epilogue_;
  bool dagger_;
  int threads_, block_, tile_, stream_;
};
}  // namespace lqcd_native
