// Vectors of one layout and the hop between layouts, as Python and the solvers use them.
//
// Every size, layout and alias is checked here; below nothing is. What takes no Python object (`each`, `sums`, `fold`, the
// `..._into` functions, `Hop::run`) needs no GIL and leaves it alone, so that a whole solve can run without it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cmath>
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
using Face = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
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

// One block of sites of one group as numbers of the arithmetic: where it lies, or decoded into room of its own.
template <class R>
class Opened {
 public:
  Opened(const Layout& l, const SiteRange& r) : l_(l), r_(r) {
    if (l.packed()) room_ = std::make_unique<Block>(size_t(r.count) * 24 * l.lanes * sizeof(R));
  }
  const R* read(const Field& f, int g) const {
    const void* at = static_cast<const char*>(f.group(g)) + r_.begin * l_.site_bytes();
    if (!room_) return static_cast<const R*>(at);
    l_.ops().decode(r_.count, at, room_->data());
    return static_cast<const R*>(room_->data());
  }
  R* write(Field& f, int g) const {
    return static_cast<R*>(room_ ? room_->data() : static_cast<char*>(f.group(g)) + r_.begin * l_.site_bytes());
  }
  void close(Field& f, int g) const {  // after write: rounds, to nearest even
    if (room_) l_.ops().encode(r_.count, room_->data(), static_cast<char*>(f.group(g)) + r_.begin * l_.site_bytes());
  }

 private:
  const Layout& l_;
  SiteRange r_;
  std::unique_ptr<Block> room_;
};

template <class From, class To>
void scatter_sites(const Layout& l, const From* host, int n, Field& out, int threads) {
  parallel(threads, blocks_of(l), [&](int64_t block) {
    const SiteRange r = block_range(l, block);
    const Opened<To> opened(l, r);
    for (int g = 0; g < out.groups(); ++g) {
      To* to = opened.write(out, g);
      for (int64_t s = r.begin; s < r.begin + r.count; ++s, to += 24 * l.lanes)
        for (int lane = 0; lane < l.lanes; ++lane) {
          const int column = g * l.rhs_lanes + lane % l.rhs_lanes;
          if (column >= n) {
            for (int k = 0; k < 24; ++k) to[k * l.lanes + lane] = 0;
            continue;
          }
          const From* from = host + (int64_t(column) * l.sites + l.site[s * l.site_lanes + lane / l.rhs_lanes]) * 24;
          for (int k = 0; k < 24; ++k) to[k * l.lanes + lane] = static_cast<To>(from[k]);
        }
      opened.close(out, g);
    }
  });
}

template <class R>
void gather_sites(const Layout& l, const Field& in, R* host, int threads) {
  parallel(threads, blocks_of(l), [&](int64_t block) {
    const SiteRange r = block_range(l, block);
    const Opened<R> opened(l, r);
    for (int g = 0; g < in.groups(); ++g) {
      const R* from = opened.read(in, g);
      for (int64_t s = r.begin; s < r.begin + r.count; ++s, from += 24 * l.lanes)
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
  if (from_layout.lanes == l.lanes) {  // then every site has the same place in both
    parallel(threads, blocks_of(l), [&](int64_t block) {
      const SiteRange r = block_range(l, block);
      const Opened<From> source(from_layout, r);
      const Opened<To> target(l, r);
      for (int g = 0; g < out.groups(); ++g) {
        const From* from = source.read(in, g);
        To* to = target.write(out, g);
        for (int64_t k = 0; k < r.count * 24 * l.lanes; ++k) to[k] = static_cast<To>(from[k]);
        target.close(out, g);
      }
    });
    return;
  }
  std::vector<int32_t> where(l.sites);  // canonical site -> its place in the source
  for (size_t k = 0; k < from_layout.site.size(); ++k) where[from_layout.site[k]] = int32_t(k);
  const int fl = from_layout.lanes;
  std::unique_ptr<Block> wide;  // a packed source as numbers of the arithmetic
  std::vector<const From*> sources(in.groups());
  if (from_layout.packed()) {
    const size_t group = size_t(from_layout.vsites) * 24 * fl;
    wide = std::make_unique<Block>(group * in.groups() * sizeof(From));
    for (int g = 0; g < in.groups(); ++g) {
      From* to = static_cast<From*>(wide->data()) + g * group;
      parallel(threads, blocks_of(from_layout), [&](int64_t block) {
        const SiteRange r = block_range(from_layout, block);
        from_layout.ops().decode(r.count, static_cast<const char*>(in.group(g)) + r.begin * from_layout.site_bytes(),
                                 to + r.begin * 24 * fl);
      });
      sources[g] = to;
    }
  } else {
    for (int g = 0; g < in.groups(); ++g) sources[g] = static_cast<const From*>(in.group(g));
  }
  parallel(threads, blocks_of(l), [&](int64_t block) {
    const SiteRange r = block_range(l, block);
    const Opened<To> opened(l, r);
    for (int g = 0; g < out.groups(); ++g) {
      To* to = opened.write(out, g);
      for (int64_t s = r.begin; s < r.begin + r.count; ++s, to += 24 * l.lanes)
        for (int lane = 0; lane < l.lanes; ++lane) {
          const int column = g * l.rhs_lanes + lane % l.rhs_lanes;
          if (column >= in.n) {
            for (int k = 0; k < 24; ++k) to[k * l.lanes + lane] = 0;
            continue;
          }
          const int32_t place = where[l.site[s * l.site_lanes + lane / l.rhs_lanes]];
          const int from_lane = place % from_layout.site_lanes * from_layout.rhs_lanes + column % from_layout.rhs_lanes;
          const From* from = sources[column / from_layout.rhs_lanes] + int64_t(place / from_layout.site_lanes) * 24 * fl + from_lane;
          for (int k = 0; k < 24; ++k) to[k * l.lanes + lane] = static_cast<To>(from[k * fl]);
        }
      opened.close(out, g);
    }
  });
}

// V[a][b] = c phase U / 2 (forward) or its adjoint from the neighbour behind, in the order of HopArgs::links. With two rows
// V[0] and V[1] alone, without the phase: an edge is a matter of the kernel then, and what a third row takes from the cross
// product of the others is the real factor alone.
template <class From, class To>
void pack_links(const std::complex<From>* u, const std::complex<double>* phases, const double* coefficients, bool two_rows,
                PackedLinks& out, int threads) {
  const Layout& l = *out.layout;
  const int numbers = two_rows ? 12 : 18, rows = two_rows ? 2 : 3;
  const bool fixed_point = l.storage == Storage::q16;
  if (fixed_point) {  // one quantum for all; entries of SU(3) have a modulus of at most 1
    double most = 1, factor = 0;
    for (int64_t k = 0; k < int64_t(l.extent[0]) * l.extent[1] * l.extent[2] * l.extent[3] * 36; ++k) {
      const double modulus = std::abs(std::complex<double>(u[k]));
      need(std::isfinite(modulus), "fixed16 cannot hold links that are not finite");
      most = std::max(most, modulus);
    }
    for (int mu = 0; mu < 4; ++mu)
      factor = std::max(factor, 0.5 * std::fabs(coefficients[mu]) * (two_rows ? 1 : std::max(1.0, std::abs(phases[mu]))));
    // A hair above, so that rounding in double cannot step over 32767.
    out.quantum = factor > 0 ? most * factor * (1 + 1e-12) / 32767 : 1;
  }
  for (int d = 0; d < 8; ++d) {
    const double s = 0.5 * coefficients[d / 2];
    out.third[d] = s != 0 ? out.quantum / s : 0;
  }
  if (two_rows) {
    out.edge.assign(l.vsites, 0);
    out.edge_phases = std::make_unique<Block>(size_t(16) * l.lanes * sizeof(To));
    To* p = static_cast<To*>(out.edge_phases->data());
    for (int k = 0; k < 16; ++k) std::fill_n(p + k * l.lanes, l.lanes, To(k % 2 ? 0 : 1));
  }
  const int64_t blocks = blocks_of(l);
  std::vector<double> deviations(blocks);
  std::vector<std::vector<std::pair<int, int>>> edges(blocks);  // (direction, lane) of links that leave the lattice
  parallel(threads, blocks, [&](int64_t block) {
    const SiteRange r = block_range(l, block);
    Block room(size_t(8) * numbers * l.lanes * sizeof(To));
    for (int64_t s = r.begin; s < r.begin + r.count; ++s) {
      To* to = static_cast<To*>(room.data());
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
          const bool turned = y[mu] == l.extent[mu] - 1 && phases[mu] != 1.0;
          if (two_rows) {
            if (turned) out.edge[s] |= uint8_t(1 << d), edges[block].push_back({d, lane});
            for (int b = 0; b < 3 && !back; ++b) {
              const int i = (b + 1) % 3, j = (b + 2) % 3;
              const std::complex<double> want = std::complex<double>(link[i]) * std::complex<double>(link[3 + j]) -
                                                std::complex<double>(link[j]) * std::complex<double>(link[3 + i]);
              const double distance = std::abs(std::conj(want) - std::complex<double>(link[6 + b]));
              deviations[block] = std::isfinite(distance) ? std::max(deviations[block], distance) : INFINITY;
            }
          }
          for (int a = 0; a < rows; ++a)
            for (int b = 0; b < 3; ++b) {
              std::complex<double> v(back ? link[b * 3 + a] : link[a * 3 + b]);
              v *= coefficients[mu];
              if (turned && !two_rows) v *= phases[mu];
              if (back) v = std::conj(v);
              v *= 0.5;
              if (fixed_point) v /= out.quantum;
              To* entry = to + (d * numbers + (b * rows + a) * 2) * l.lanes + lane;
              entry[0] = static_cast<To>(v.real());
              entry[l.lanes] = static_cast<To>(v.imag());
            }
        }
      }
      l.ops().encode_vectors(8 * numbers, to, static_cast<char*>(out.block->data()) + s * 8 * numbers * l.lanes * l.number_bytes());
    }
  });
  for (int64_t block = 0; block < blocks; ++block) {
    out.deviation = std::max(out.deviation, deviations[block]);
    for (const auto& [d, lane] : edges[block]) {
      To* p = static_cast<To*>(out.edge_phases->data()) + 2 * d * l.lanes + lane;
      p[0] = To(phases[d / 2].real()), p[l.lanes] = To(d % 2 ? -phases[d / 2].imag() : phases[d / 2].imag());
    }
  }
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

  nb::object norm2(const Field& x) const { return totals(squares(x), x.n); }

  nb::object axpy_norm2(const Scalars& a, const Field& x, Field& y) const { return totals(axpy_squares(a, x, y), x.n); }

  nb::object cg_update(const Scalars& a, const Field& p, const Field& ap, Field& x, Field& r) const {
    return totals(cg_squares(a, p, ap, x, r), p.n);
  }

  // The same norms by time slices, for sums over shards.
  nb::object norm2_slices(const Field& x) const { return by_slices(squares(x), x.n); }
  nb::object axpy_norm2_slices(const Scalars& a, const Field& x, Field& y) const { return by_slices(axpy_squares(a, x, y), x.n); }
  nb::object cg_update_slices(const Scalars& a, const Field& p, const Field& ap, Field& x, Field& r) const {
    return by_slices(cg_squares(a, p, ap, x, r), p.n);
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
                                     const std::vector<double>& coefficients, bool two_rows) const {
    const Layout& l = *layout_;
    need(u.ndim() == 7, "an array of links has seven axes");
    for (int mu = 0; mu < 4; ++mu) need(u.shape(mu) == size_t(l.extent[mu]), "the links do not fit the lattice");
    need(u.shape(4) == 4 && u.shape(5) == 3 && u.shape(6) == 3, "links need the shape (T, Z, Y, X, 4, 3, 3)");
    need(phases.size() == 4 && coefficients.size() == 4, "four phases and four coefficients");
    nb::gil_scoped_release release;
    auto out = std::make_shared<PackedLinks>();
    out->layout = layout_;
    out->two_rows = two_rows;
    out->block = std::make_unique<Block>(size_t(l.vsites) * 8 * (two_rows ? 12 : 18) * l.lanes * l.number_bytes());
    using R = typename C::value_type;
    if (l.is_double)
      pack_links<R, double>(u.data(), phases.data(), coefficients.data(), two_rows, *out, threads_);
    else
      pack_links<R, float>(u.data(), phases.data(), coefficients.data(), two_rows, *out, threads_);
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
  size_t bytes(int64_t nv) const { return size_t(nv) * layout_->site_bytes(); }
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

  std::vector<double> squares(const Field& x) const {
    check(x);
    nb::gil_scoped_release release;
    return sums(x.n, 1, [&](int g, int64_t b, int64_t nv, double* s) { layout_->ops().norm2(nv, at(x, g, b), s); });
  }

  std::vector<double> axpy_squares(const Scalars& a, const Field& x, Field& y) const {
    check(x), check(y), check_pair(x, y);
    const Factors f(*layout_, a, x.n);
    nb::gil_scoped_release release;
    return sums(x.n, 1, [&](int g, int64_t b, int64_t nv, double* s) {
      layout_->ops().axpy_norm2(nv, f.of(g), f.real, at(x, g, b), at(y, g, b), s);
    });
  }

  std::vector<double> cg_squares(const Scalars& a, const Field& p, const Field& ap, Field& x, Field& r) const {
    check(p), check(ap), check(x), check(r);
    check_pair(p, x), check_pair(p, r), check_pair(ap, x), check_pair(ap, r), check_pair(x, r);
    const Factors f(*layout_, a, p.n);
    nb::gil_scoped_release release;
    return sums(p.n, 1, [&](int g, int64_t b, int64_t nv, double* s) {
      layout_->ops().cg_update(nv, f.of(g), f.real, at(p, g, b), at(ap, g, b), at(x, g, b), at(r, g, b), s);
    });
  }

  nb::object by_slices(const std::vector<double>& slices, int n) const {
    auto* data = new double[slices.size()];
    std::copy(slices.begin(), slices.end(), data);
    return array(data, {size_t(n), size_t(layout_->extent[0])});
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
      const size_t nb = l.number_bytes(), site = l.site_bytes();
      for (int64_t v = 0; v < nv; ++v) {
        const char* a = static_cast<const char*>(at(from, c / rl, begin + v));
        char* b = static_cast<char*>(at(to, d / rl, begin + v));
        for (int k = 0; k < 24 * l.site_lanes; ++k) std::memcpy(b + (k * rl + d % rl) * nb, a + (k * rl + c % rl) * nb, nb);
        const size_t numbers = 24 * l.lanes * nb;
        for (size_t k = 0; numbers + 4 * k * rl < site; ++k)  // the scales behind them
          std::memcpy(b + numbers + 4 * (k * rl + d % rl), a + numbers + 4 * (k * rl + c % rl), 4);
      }
    });
  }

  std::shared_ptr<Layout> layout_;
  int threads_;
};

// -- hopping term with its epilogue ------------------------------------------------------------------------------------

class Hop {
 public:
  Hop(std::shared_ptr<PackedLinks> links, std::shared_ptr<Layout> source, int epilogue, std::shared_ptr<PackedDiagonal> diagonal,
      bool dagger, int threads, int block, int tile, int stream, int prefetch)
      : links_(std::move(links)), source_(std::move(source)), diagonal_(std::move(diagonal)), epilogue_(epilogue),
        dagger_(dagger), threads_(threads), block_(block), tile_(tile), stream_(stream), prefetch_(prefetch) {
    need(links_ && source_, "links and source are needed");
    need(links_->layout->hops_from(*source_), "the source layout does not fit the links");
    need(epilogue >= 0 && epilogue <= 3, "no such epilogue");
    need((epilogue == plain) == !diagonal_, "an epilogue with a site-diagonal term needs one, the plain one takes none");
    need(!diagonal_ || diagonal_->layout->same(*links_->layout), "the site-diagonal term was packed for another layout");
    need(threads >= 1 && block >= 1 && tile >= 1, "threads, block and tile must be at least 1");
    need(prefetch >= nothing && prefetch <= neighbours, "no such prefetch");
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
    Call call(*this, in, x, &out);
    sweep(call, 0, links_->layout->extent[0]);
  }

  // The same, and after(group, block, range) as soon as a block of a group is stored, while it is in cache.
  template <class F>
  void run(const Field& in, const Field* x, Field& out, F&& after) const {
    Call call(*this, in, x, &out);
    call.args.stream = 0;
    // In the order of sweep(), a piece being whole blocks.
    const Layout& l = *links_->layout;
    const int64_t per = blocks_per_slice(l), slices = l.extent[0];
    const int64_t tile = std::clamp<int64_t>(tile_ / kBlock, 1, per), pieces = (per + tile - 1) / tile;
    const int64_t wanted = call.threads > 1 ? 4 * call.threads : 1, cuts = std::min<int64_t>(slices, (wanted + pieces - 1) / pieces);
    parallel(call.threads, pieces * cuts, [&](int64_t task) {
      const int64_t piece = task / cuts, cut = task % cuts;
      const int64_t begin = piece * tile, end = std::min(per, begin + tile);
      HopArgs a = call.args;
      for (int g = 0; g < call.args.groups; g += block_) {
        a.groups = std::min(block_, call.args.groups - g);
        a.in = call.args.in + g, a.out = call.args.out + g, a.x = call.args.x + g;
        for (int64_t t = slices * cut / cuts; t < slices * (cut + 1) / cuts; ++t)
          for (int64_t b = t * per + begin; b < t * per + end; ++b) {
            const SiteRange r = block_range(l, b);
            l.ops().hop(a, r.begin, r.begin + r.count);
            for (int k = g; k < g + a.groups; ++k) after(k, b, r);
          }
      }
    });
  }

  // -- a slab whose neighbours in t live elsewhere; see lqcd_core.backend.HaloHop ---------------------------------------
  // Faces are (n, vector sites of a slice, 12, site lanes) of the arithmetic's type: padding columns do not travel.

  nb::object faces(const Field& in) const { return links_->layout->is_double ? faces_as<double>(in) : faces_as<float>(in); }

  FieldPtr interior(const Field& in) const {
    check_source(in);
    auto out = std::make_unique<Field>(links_->layout, in.n);
    nb::gil_scoped_release release;
    Call call(*this, in, minuend(in), out.get());
    if (links_->layout->extent[0] > 2) sweep(call, 1, links_->layout->extent[0] - 1);
    return out;
  }

  void exterior(const Field& in, Field& partial, const Face& below, const Face& above) const {
    check_source(in);
    const auto& l = links_->layout;
    need(partial.layout->same(*l) && partial.n == in.n && &partial != &in, "what the interior left does not belong to this vector");
    nb::gil_scoped_release release;
    const LanedFace from_below(*l, below, in.n), from_above(*l, above, in.n);
    Call call(*this, in, minuend(in), &partial);
    call.args.below = from_below.groups.data(), call.args.above = from_above.groups.data();
    sweep(call, 0, 1);
    if (l->extent[0] > 1) sweep(call, l->extent[0] - 1, l->extent[0]);
  }

 private:
  void check_source(const Field& in) const {
    need(in.layout.get() == source_.get() || in.layout->same(*source_), "a handle of another space (lattice, parity or precision)");
  }
  const Field* minuend(const Field& in) const {
    if (epilogue_ != diagonal_minus && epilogue_ != one_minus) return nullptr;
    need(links_->layout->parity < 0, "on one parity a slab has no operator that subtracts");
    return &in;
  }

  // A face in groups of lanes, padding lanes zero.
  struct LanedFace {
    LanedFace(const Layout& l, const Face& face, int n) : groups(l.groups(n)) {
      const size_t rb = l.real_bytes();
      need(face.ndim() == 4 && face.shape(0) == size_t(n) && face.shape(1) == size_t(l.per_slice) && face.shape(2) == 12 &&
               face.shape(3) == size_t(l.site_lanes) && face.dtype().code == uint8_t(nb::dlpack::dtype_code::Float) &&
               face.dtype().bits == 8 * rb,
           "a face does not fit this slab");
      const size_t group = size_t(l.per_slice) * 12 * l.lanes * rb;
      room = std::make_unique<Block>(group * groups.size());
      char* to = static_cast<char*>(room->data());
      if (n % l.rhs_lanes) std::memset(to, 0, group * groups.size());
      const char* from = static_cast<const char*>(face.data());
      const int64_t numbers = l.per_slice * 12 * l.site_lanes;
      for (int c = 0; c < n; ++c)
        rb == 8 ? spread<double>(from + c * numbers * rb, numbers, to + c / l.rhs_lanes * group, c % l.rhs_lanes, l.rhs_lanes)
                : spread<float>(from + c * numbers * rb, numbers, to + c / l.rhs_lanes * group, c % l.rhs_lanes, l.rhs_lanes);
      for (size_t g = 0; g < groups.size(); ++g) groups[g] = to + g * group;
    }
    // One column into its lane of a group.
    template <class R>
    static void spread(const char* from, int64_t numbers, char* group, int lane, int lanes) {
      if (lanes == 1) {
        std::memcpy(group, from, numbers * sizeof(R));
        return;
      }
      const R* x = reinterpret_cast<const R*>(from);
      R* y = reinterpret_cast<R*>(group) + lane;
      for (int64_t k = 0; k < numbers; ++k) y[k * lanes] = x[k];
    }

    std::unique_ptr<Block> room;
    std::vector<const void*> groups;
  };

  template <class R>
  nb::object faces_as(const Field& in) const {
    check_source(in);
    const Layout& l = *links_->layout;
    const int64_t numbers = l.per_slice * 12 * l.site_lanes;
    R* ends[2] = {new R[in.n * numbers], new R[in.n * numbers]};
    nb::object arrays[2];
    for (int k = 0; k < 2; ++k) {
      nb::capsule owner(ends[k], [](void* p) noexcept { delete[] static_cast<R*>(p); });
      arrays[k] = nb::cast(nb::ndarray<nb::numpy, R>(ends[k], {size_t(in.n), size_t(l.per_slice), 12, size_t(l.site_lanes)}, owner));
    }
    {
      nb::gil_scoped_release release;
      Call call(*this, in, nullptr, nullptr);
      const int64_t per = blocks_per_slice(l);
      parallel(call.threads, in.groups() * per, [&](int64_t task) {
        const int g = int(task / per);
        const int64_t begin = task % per * kBlock, count = std::min(kBlock, l.per_slice - begin);
        const size_t size = size_t(count) * 12 * l.lanes;
        Block room(2 * size * sizeof(R));
        R* both[2] = {static_cast<R*>(room.data()), static_cast<R*>(room.data()) + size};
        l.ops().faces(call.args, g, begin, begin + count, both[0] - begin * 12 * l.lanes, both[1] - begin * 12 * l.lanes);
        for (int side = 0; side < 2; ++side)
          for (int r = 0; r < l.rhs_lanes; ++r) {
            const int c = g * l.rhs_lanes + r;
            if (c >= in.n) break;
            R* to = ends[side] + c * numbers + begin * 12 * l.site_lanes;
            for (int64_t k = 0; k < count * 12 * l.site_lanes; ++k) to[k] = both[side][k * l.rhs_lanes + r];
          }
      });
    }
    return nb::make_tuple(arrays[0], arrays[1]);
  }

  struct Call {
    Call(const Hop& hop, const Field& in, const Field* x, Field* out) : ins(in.groups()), xs(in.groups()), outs(in.groups()) {
      const auto& layout = hop.links_->layout;
      for (int g = 0; g < in.groups(); ++g) ins[g] = in.group(g), outs[g] = out ? out->group(g) : nullptr, xs[g] = x ? x->group(g) : nullptr;
      const PackedLinks& links = *hop.links_;
      args.two_rows = links.two_rows, args.edge = links.edge.data(), args.quantum = links.quantum;
      args.edge_phases = links.edge_phases ? links.edge_phases->data() : nullptr;
      std::memcpy(args.third, links.third, sizeof(args.third));
      args.per_slice = layout->per_slice, args.last_slice = layout->vsites - layout->per_slice;
      args.links = hop.links_->block->data();
      args.nbr = layout->nbr.data(), args.cross = layout->cross.data(), args.lane_map = layout->lane_map.data();
      args.in = ins.data(), args.out = outs.data(), args.x = xs.data();
      args.groups = in.groups(), args.block = hop.block_, args.epilogue = hop.epilogue_, args.dagger = hop.dagger_;
      args.stream = hop.stream_ >= 0 ? hop.stream_ : 0, args.prefetch = hop.prefetch_;
      if (hop.diagonal_) args.diagonal = hop.diagonal_->args;
      threads = layout->sites * in.n < kSmall ? 1 : hop.threads_;
    }
    std::vector<const void*> ins, xs;
    std::vector<void*> outs;
    HopArgs args{};
    int threads;
  };

  // The slices [from, to): pieces of `tile` vector sites of a slice, each taken through the slices in turn, a block of columns
  // at a time. The three slices that a site needs stay in the second-level cache if tile and block are small enough.
  void sweep(const Call& call, int from, int to) const {
    const Layout& l = *links_->layout;
    const int64_t per = l.per_slice, tile = std::min<int64_t>(tile_, per), pieces = (per + tile - 1) / tile;
    const int64_t wanted = call.threads > 1 ? 4 * call.threads : 1;  // tasks, so that a busy core holds nobody up
    const int64_t cuts = std::min<int64_t>(to - from, (wanted + pieces - 1) / pieces);
    parallel(call.threads, pieces * cuts, [&](int64_t task) {
      const int64_t piece = task / cuts, cut = task % cuts;
      const int64_t first = from + (to - from) * cut / cuts, last = from + (to - from) * (cut + 1) / cuts;
      const int64_t begin = piece * tile, end = std::min(per, begin + tile);
      if (pieces == 1) return l.ops().hop(call.args, first * per, last * per);
      HopArgs a = call.args;
      for (int g = 0; g < call.args.groups; g += block_) {
        a.groups = std::min(block_, call.args.groups - g);
        a.in = call.args.in + g, a.out = call.args.out + g, a.x = call.args.x + g;
        a.below = call.args.below ? call.args.below + g : nullptr, a.above = call.args.above ? call.args.above + g : nullptr;
        for (int64_t t = first; t < last; ++t) l.ops().hop(a, t * per + begin, t * per + end);
      }
    });
  }

  std::shared_ptr<PackedLinks> links_;
  std::shared_ptr<Layout> source_;
  std::shared_ptr<PackedDiagonal> diagonal_;
  int epilogue_;
  bool dagger_;
  int threads_, block_, tile_, stream_, prefetch_;
};
}  // namespace lqcd_native
