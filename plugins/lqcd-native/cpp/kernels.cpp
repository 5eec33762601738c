// The kernels, compiled once per instruction set with -DLQCD_ISA=<name> and that set's flags.
//
//   H psi(x) = 1/2 sum_mu c_mu [ (1 - gamma_mu) U_mu(x) psi(x + mu) + (1 + gamma_mu) U_mu^dagger(x - mu) psi(x - mu) ]
//
// In the chiral basis gamma_mu = [[0, B], [B^dagger, 0]], so with S = -1 forward and +1 backward the half spinor
//   h = psi_u + S B psi_l   (2 spins),   chi = V h  (V: the folded link, or its adjoint, halved)
// adds chi to the upper and S B^dagger chi to the lower spins. Flops per site: 8 x 12 project, 8 x 132 multiply, 8 x 24 - 24
// add up: 1320. Bytes per site in single: 8 x 72 links, 96 written, 96 to 768 read.
//
// Order of work: one direction and one spin at a time, so that 6 numbers of h, 6 of chi and 2 of the link stay in 16 registers;
// the 24 sums of a site live in L1. A direction costs 72 multiply-adds on 84 loads and 24 stores, so in cache the two load
// ports bind, not the multipliers. (All half spinors first and one colour row after the other was 10 % slower on a Zen 3.)
//
// Everything is in an unnamed namespace: see kernels.h.

#include "kernels.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define LQCD_BYTES 64
#elif defined(__AVX2__)
#define LQCD_BYTES 32
#else
#define LQCD_BYTES 16
#endif

#define LQCD_PASTE2(a, b) a##b
#define LQCD_PASTE(a, b) LQCD_PASTE2(a, b)
#define LQCD_TEXT2(a) #a
#define LQCD_TEXT(a) LQCD_TEXT2(a)
#define INLINE inline __attribute__((always_inline))

namespace {

using lqcd_native::DiagonalArgs;
using lqcd_native::HopArgs;

template <class R>
struct Lanes;

template <>
struct Lanes<float> {
  static constexpr int n = LQCD_BYTES / 4;
  typedef float V __attribute__((vector_size(LQCD_BYTES)));
  static constexpr int parts = 2;  // vectors of double that hold its lanes
};

template <>
struct Lanes<double> {
  static constexpr int n = LQCD_BYTES / 8;
  typedef double V __attribute__((vector_size(LQCD_BYTES)));
  static constexpr int parts = 1;
};

template <class V, class R>
INLINE V broadcast(R a) {
  return V{} + a;
}

// -- lane permutation --------------------------------------------------------------------------------------------------

struct Shuffle {
#if LQCD_BYTES == 64
  __m512i index;
#elif LQCD_BYTES == 32
  __m256i index;
#elif defined(__SSSE3__)
  __m128i index;
#elif defined(__aarch64__)
  uint8x16_t index;
#else
  unsigned char index[16];
#endif
};

// lanes[l]: the lane that lane l reads. Kept as 4-byte units (AVX) or bytes, so that float and double share the code.
template <class R>
INLINE Shuffle make_shuffle(const int32_t* lanes) {
  Shuffle s;
  constexpr int n = Lanes<R>::n;
#if LQCD_BYTES >= 32
  constexpr int unit = sizeof(R) / 4;
  int32_t units[LQCD_BYTES / 4];
  for (int l = 0; l < n; ++l)
    for (int k = 0; k < unit; ++k) units[l * unit + k] = lanes[l] * unit + k;
  __builtin_memcpy(&s.index, units, sizeof(units));
#else
  constexpr int unit = sizeof(R);
  unsigned char units[16];
  for (int l = 0; l < n; ++l)
    for (int k = 0; k < unit; ++k) units[l * unit + k] = static_cast<unsigned char>(lanes[l] * unit + k);
  __builtin_memcpy(&s.index, units, sizeof(units));
#endif
  return s;
}

template <class V>
INLINE V shuffle(V v, const Shuffle& s) {
#if LQCD_BYTES == 64
  return (V)_mm512_permutexvar_ps(s.index, (__m512)v);
#elif LQCD_BYTES == 32
  return (V)_mm256_permutevar8x32_ps((__m256)v, s.index);
#elif defined(__SSSE3__)
  return (V)_mm_shuffle_epi8((__m128i)v, s.index);
#elif defined(__aarch64__)
  return (V)vqtbl1q_u8((uint8x16_t)v, s.index);
#else
  unsigned char in[16], out[16];
  __builtin_memcpy(in, &v, 16);
  for (int k = 0; k < 16; ++k) out[k] = in[s.index[k]];
  __builtin_memcpy(&v, out, 16);
  return v;
#endif
}

template <class V>
INLINE void store(V* to, V v, bool stream) {
#if LQCD_BYTES == 64
  if (stream) return _mm512_stream_ps(reinterpret_cast<float*>(to), (__m512)v);
#elif LQCD_BYTES == 32
  if (stream) return _mm256_stream_ps(reinterpret_cast<float*>(to), (__m256)v);
#elif defined(__SSE__)
  if (stream) return _mm_stream_ps(reinterpret_cast<float*>(to), (__m128)v);
#endif
  *to = v;
}

INLINE void store_fence() {
#if defined(__SSE__)
  _mm_sfence();
#endif
}

// -- projection and reconstruction -------------------------------------------------------------------------------------

template <int S, class V>
INLINE V plus(V a, V b) {
  return S > 0 ? a + b : a - b;
}

enum { T, Z, Y, X };

// One direction and one spin: h = psi_spin + S (B psi_l)_spin, chi = V h, then chi to the upper spin and S B^dagger chi to the
// lower one. B of t, z, y, x is 1, i sigma_3, - i sigma_2, i sigma_1.
template <int MU, int S, bool FIRST, int SPIN, class V>
INLINE void one_spin(const V* __restrict__ u, const V* __restrict__ p, V* __restrict__ o, bool crosses, const Shuffle& sh) {
  constexpr int low = MU == T || MU == Z ? 2 + SPIN : 3 - SPIN;  // the lower spin that B pairs with this one
  V h[6];
  for (int b = 0; b < 3; ++b) {
    const V r = p[6 * SPIN + 2 * b], i = p[6 * SPIN + 2 * b + 1], lr = p[6 * low + 2 * b], li = p[6 * low + 2 * b + 1];
    if (MU == T) h[2 * b] = plus<S>(r, lr), h[2 * b + 1] = plus<S>(i, li);
    else if (MU == Z) h[2 * b] = plus<SPIN ? S : -S>(r, li), h[2 * b + 1] = plus<SPIN ? -S : S>(i, lr);
    else if (MU == Y) h[2 * b] = plus<SPIN ? S : -S>(r, lr), h[2 * b + 1] = plus<SPIN ? S : -S>(i, li);
    else h[2 * b] = plus<-S>(r, li), h[2 * b + 1] = plus<S>(i, lr);
  }
  if (__builtin_expect(crosses, 0))
    for (int k = 0; k < 6; ++k) h[k] = shuffle(h[k], sh);
  V c[6];
  for (int b = 0; b < 3; ++b)
    for (int a = 0; a < 3; ++a) {
      const V ur = u[6 * b + 2 * a], ui = u[6 * b + 2 * a + 1];
      if (b == 0) c[2 * a] = ur * h[0], c[2 * a + 1] = ur * h[1];
      else c[2 * a] += ur * h[2 * b], c[2 * a + 1] += ur * h[2 * b + 1];
      c[2 * a] -= ui * h[2 * b + 1], c[2 * a + 1] += ui * h[2 * b];
    }
  for (int a = 0; a < 3; ++a) {
    const V cr = c[2 * a], ci = c[2 * a + 1];
    V *up = o + 6 * SPIN + 2 * a, *lo = o + 6 * low + 2 * a;
    if (FIRST) {  // MU == T
      up[0] = cr, up[1] = ci, lo[0] = S > 0 ? cr : -cr, lo[1] = S > 0 ? ci : -ci;
    } else {
      up[0] += cr, up[1] += ci;
      if (MU == T) lo[0] = plus<S>(lo[0], cr), lo[1] = plus<S>(lo[1], ci);
      else if (MU == Z) lo[0] = plus<SPIN ? -S : S>(lo[0], ci), lo[1] = plus<SPIN ? S : -S>(lo[1], cr);
      else if (MU == Y) lo[0] = plus<SPIN ? S : -S>(lo[0], cr), lo[1] = plus<SPIN ? S : -S>(lo[1], ci);
      else lo[0] = plus<S>(lo[0], ci), lo[1] = plus<-S>(lo[1], cr);
    }
  }
}

template <int MU, int S, bool FIRST, class V>
INLINE void direction(const V* u, const V* p, V* o, bool crosses, const Shuffle& sh) {
  one_spin<MU, S, FIRST, 0>(u, p, o, crosses, sh);
  one_spin<MU, S, FIRST, 1>(u, p, o, crosses, sh);
}

// H psi at one vector site, into acc[spin][colour][re, im]. D = -1 for H, +1 for gamma5 H gamma5 (projectors swapped).
template <class R, int D>
INLINE void hop_site(const typename Lanes<R>::V* links, const typename Lanes<R>::V* psi, const int32_t* nbr, unsigned cross,
                     const Shuffle* s, typename Lanes<R>::V* __restrict__ acc) {
  direction<T, D, true>(links, psi + 24 * int64_t(nbr[0]), acc, cross & 1, s[0]);
  direction<T, -D, false>(links + 18, psi + 24 * int64_t(nbr[1]), acc, cross & 2, s[1]);
  direction<Z, D, false>(links + 36, psi + 24 * int64_t(nbr[2]), acc, cross & 4, s[2]);
  direction<Z, -D, false>(links + 54, psi + 24 * int64_t(nbr[3]), acc, cross & 8, s[3]);
  direction<Y, D, false>(links + 72, psi + 24 * int64_t(nbr[4]), acc, cross & 16, s[4]);
  direction<Y, -D, false>(links + 90, psi + 24 * int64_t(nbr[5]), acc, cross & 32, s[5]);
  direction<X, D, false>(links + 108, psi + 24 * int64_t(nbr[6]), acc, cross & 64, s[6]);
  direction<X, -D, false>(links + 126, psi + 24 * int64_t(nbr[7]), acc, cross & 128, s[7]);
}

// -- site-diagonal term ------------------------------------------------------------------------------------------------

// out = D in at one vector site (24 vectors). hermitian: per chirality 6 real diagonal entries, then re and im of the
// entries (i, j < i) row by row. general: re and im of all 36 entries row by row.
template <class R>
INLINE void diagonal_site(const DiagonalArgs& d, int64_t site, const typename Lanes<R>::V* __restrict__ in,
                          typename Lanes<R>::V* __restrict__ out) {
  using V = typename Lanes<R>::V;
  if (d.kind == DiagonalArgs::scalar) {
    const double* factor[2] = {d.upper, d.lower};
    for (int c = 0; c < 2; ++c) {
      const V re = broadcast<V>(R(factor[c][0])), im = broadcast<V>(R(factor[c][1]));
      if (factor[c][1] == 0)
        for (int k = 0; k < 12; ++k) out[12 * c + k] = re * in[12 * c + k];
      else
        for (int k = 0; k < 12; k += 2) {
          const V xr = in[12 * c + k], xi = in[12 * c + k + 1];
          out[12 * c + k] = re * xr - im * xi, out[12 * c + k + 1] = re * xi + im * xr;
        }
    }
    return;
  }
  const V* blocks = static_cast<const V*>(d.blocks);
  for (int c = 0; c < 2; ++c) {
    const V* x = in + 12 * c;
    V* y = out + 12 * c;
    if (d.kind == DiagonalArgs::hermitian) {
      const V* b = blocks + (site * 2 + c) * 36;
      for (int i = 0; i < 6; ++i) y[2 * i] = b[i] * x[2 * i], y[2 * i + 1] = b[i] * x[2 * i + 1];
      if (d.twist != 0) {
        const V mu = broadcast<V>(R(c == 0 ? d.twist : -d.twist));
        for (int i = 0; i < 6; ++i) y[2 * i] -= mu * x[2 * i + 1], y[2 * i + 1] += mu * x[2 * i];
      }
      b += 6;
      for (int i = 1; i < 6; ++i) {
        V yr = y[2 * i], yi = y[2 * i + 1];
        const V xr = x[2 * i], xi = x[2 * i + 1];
        for (int j = 0; j < i; ++j, b += 2) {
          const V re = b[0], im = b[1];
          yr += re * x[2 * j], yi += re * x[2 * j + 1];
          yr -= im * x[2 * j + 1], yi += im * x[2 * j];
          y[2 * j] += re * xr, y[2 * j + 1] += re * xi;  // and its conjugate on the other side
          y[2 * j] += im * xi, y[2 * j + 1] -= im * xr;
        }
        y[2 * i] = yr, y[2 * i + 1] = yi;
      }
    } else {
      const V* b = blocks + (site * 2 + c) * 72;
      for (int i = 0; i < 6; ++i) {
        V yr = {}, yi = {};
        for (int j = 0; j < 6; ++j, b += 2) {
          yr += b[0] * x[2 * j], yi += b[0] * x[2 * j + 1];
          yr -= b[1] * x[2 * j + 1], yi += b[1] * x[2 * j];
        }
        y[2 * i] = yr, y[2 * i + 1] = yi;
      }
    }
  }
}

template <class R>
void diagonal(const DiagonalArgs& d, const void* x, void* y, int64_t begin, int64_t end) {
  using V = typename Lanes<R>::V;
  const V* in = static_cast<const V*>(x);
  V* out = static_cast<V*>(y);
  for (int64_t s = begin; s < end; ++s) diagonal_site<R>(d, s, in + 24 * s, out + 24 * s);
}

// -- the loop over sites -----------------------------------------------------------------------------------------------

template <class R, int D, int E, bool STREAM>
void hop_loop(const HopArgs& a, int64_t begin, int64_t end) {
  using V = typename Lanes<R>::V;
  Shuffle shuffles[8];
  for (int d = 0; d < 8; ++d) shuffles[d] = make_shuffle<R>(a.lane_map + d * Lanes<R>::n);
  const V* links = static_cast<const V*>(a.links);
  for (int first = 0; first < a.groups; first += a.block) {
    const int last = first + a.block < a.groups ? first + a.block : a.groups;
    for (int64_t s = begin; s < end; ++s) {
      for (int g = first; g < last; ++g) {
        V acc[24], result[24];
        // Only t+ comes from afar: what follows along t is the one neighbour that no earlier site has touched. Asking for the
        // others, or for links, ahead of time made it slower.
        const int next_group = g + 1 < last ? g + 1 : first;
        const int64_t next = next_group == first ? s + 1 : s;
        if (next < end) {
          const char* ahead = reinterpret_cast<const char*>(static_cast<const V*>(a.in[next_group]) + 24 * int64_t(a.nbr[8 * next]));
          for (int k = 0; k < 24 * int(sizeof(V)); k += 64) __builtin_prefetch(ahead + k);
        }
        hop_site<R, D>(links + 144 * s, static_cast<const V*>(a.in[g]), a.nbr + 8 * s, a.cross[s], shuffles, acc);
        V* out = static_cast<V*>(a.out[g]) + 24 * s;
        if (E == lqcd_native::plain) {
          for (int k = 0; k < 24; ++k) store(out + k, acc[k], STREAM);
          continue;
        }
        const V* x = E == lqcd_native::times_diagonal ? nullptr : static_cast<const V*>(a.x[g]) + 24 * s;
        diagonal_site<R>(a.diagonal, s, E == lqcd_native::diagonal_minus ? x : acc, result);
        for (int k = 0; k < 24; ++k) {
          V r = result[k];
          if (E == lqcd_native::diagonal_minus) r = r - acc[k];
          if (E == lqcd_native::one_minus) r = x[k] - r;
          store(out + k, r, STREAM);
        }
      }
    }
  }
  if (STREAM) store_fence();  // other threads read what was stored around the cache
}

template <class R, int D, int E>
void hop_stores(const HopArgs& a, int64_t begin, int64_t end) {
  a.stream ? hop_loop<R, D, E, true>(a, begin, end) : hop_loop<R, D, E, false>(a, begin, end);
}

template <class R, int D>
void hop_epilogue(const HopArgs& a, int64_t begin, int64_t end) {
  switch (a.epilogue) {
    case lqcd_native::plain: return hop_stores<R, D, lqcd_native::plain>(a, begin, end);
    case lqcd_native::times_diagonal: return hop_stores<R, D, lqcd_native::times_diagonal>(a, begin, end);
    case lqcd_native::diagonal_minus: return hop_stores<R, D, lqcd_native::diagonal_minus>(a, begin, end);
    default: return hop_stores<R, D, lqcd_native::one_minus>(a, begin, end);
  }
}

template <class R>
void hop(const HopArgs& a, int64_t begin, int64_t end) {
  a.dagger ? hop_epilogue<R, +1>(a, begin, end) : hop_epilogue<R, -1>(a, begin, end);
}

// -- linear algebra ----------------------------------------------------------------------------------------------------

template <class R>
struct Scalar {
  using V = typename Lanes<R>::V;
  V re, im;
  explicit INLINE Scalar(const void* a) : re(static_cast<const V*>(a)[0]), im(static_cast<const V*>(a)[1]) {}
};

// The lanes of a vector in double. By intrinsics: a 64-byte generic vector on a 32-byte machine becomes scalar code in gcc.
using Doubles = Lanes<double>::V;

template <class R>
struct Wide {
  Doubles part[Lanes<R>::parts];

  static INLINE Wide zero() {
    Wide w;
    for (auto& p : w.part) p = Doubles{};
    return w;
  }
  INLINE void add_product(const Wide& a, const Wide& b) {
    for (int k = 0; k < Lanes<R>::parts; ++k) part[k] += a.part[k] * b.part[k];
  }
  INLINE Wide operator+(const Wide& o) const {
    Wide w;
    for (int k = 0; k < Lanes<R>::parts; ++k) w.part[k] = part[k] + o.part[k];
    return w;
  }
  INLINE Wide operator-(const Wide& o) const {
    Wide w;
    for (int k = 0; k < Lanes<R>::parts; ++k) w.part[k] = part[k] - o.part[k];
    return w;
  }
  INLINE void write(double* to) const { __builtin_memcpy(to, part, sizeof(part)); }
};

INLINE Wide<double> widen(Lanes<double>::V v) { return {{v}}; }

INLINE Wide<float> widen(Lanes<float>::V v) {
#if LQCD_BYTES == 64
  return {{(Doubles)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v)), (Doubles)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1))}};
#elif LQCD_BYTES == 32
  return {{(Doubles)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v)), (Doubles)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1))}};
#elif defined(__SSE2__)
  return {{(Doubles)_mm_cvtps_pd((__m128)v), (Doubles)_mm_cvtps_pd(_mm_movehl_ps((__m128)v, (__m128)v))}};
#else
  return {{Doubles{v[0], v[1]}, Doubles{v[2], v[3]}}};
#endif
}

template <bool REAL, class R, class V>
INLINE void add_scaled(const Scalar<R>& a, V xr, V xi, V& yr, V& yi) {
  yr += a.re * xr, yi += a.re * xi;
  if (!REAL) yr -= a.im * xi, yi += a.im * xr;
}

template <class R, bool REAL>
INLINE void axpy_loop(int64_t nv, const Scalar<R> a, const void* x, void* y) {
  using V = typename Lanes<R>::V;
  const V* in = static_cast<const V*>(x);
  V* out = static_cast<V*>(y);
  for (int64_t k = 0; k < 24 * nv; k += 2) {
    V yr = out[k], yi = out[k + 1];
    add_scaled<REAL, R>(a, in[k], in[k + 1], yr, yi);
    out[k] = yr, out[k + 1] = yi;
  }
}

template <class R>
void axpy(int64_t nv, const void* a, bool real, const void* x, void* y) {
  const Scalar<R> s(a);
  real ? axpy_loop<R, true>(nv, s, x, y) : axpy_loop<R, false>(nv, s, x, y);
}

template <class R, bool REAL>
INLINE void xpay_loop(int64_t nv, const Scalar<R> a, const void* x, void* y) {
  using V = typename Lanes<R>::V;
  const V* in = static_cast<const V*>(x);
  V* out = static_cast<V*>(y);
  for (int64_t k = 0; k < 24 * nv; k += 2) {
    V r = in[k], i = in[k + 1];
    add_scaled<REAL, R>(a, out[k], out[k + 1], r, i);
    out[k] = r, out[k + 1] = i;
  }
}

template <class R>
void xpay(int64_t nv, const void* a, bool real, const void* x, void* y) {
  const Scalar<R> s(a);
  real ? xpay_loop<R, true>(nv, s, x, y) : xpay_loop<R, false>(nv, s, x, y);
}

template <class R>
void scale(int64_t nv, const void* a, bool real, void* x) {
  using V = typename Lanes<R>::V;
  const Scalar<R> s(a);
  V* v = static_cast<V*>(x);
  for (int64_t k = 0; k < 24 * nv; k += 2) {
    const V r = v[k], i = v[k + 1];
    v[k] = real ? s.re * r : s.re * r - s.im * i;
    v[k + 1] = real ? s.re * i : s.re * i + s.im * r;
  }
}

template <class R>
void gamma5(int64_t nv, const void* x, void* y) {
  using V = typename Lanes<R>::V;
  const V* in = static_cast<const V*>(x);
  V* out = static_cast<V*>(y);
  for (int64_t s = 0; s < nv; ++s, in += 24, out += 24) {
    for (int k = 0; k < 12; ++k) out[k] = in[k];
    for (int k = 12; k < 24; ++k) out[k] = -in[k];
  }
}

// Sums run in double, lane by lane, in eight chains of fixed order: the bits depend on the layout alone.
template <class R>
void dot(int64_t nv, const void* x, const void* y, double* sums) {
  using V = typename Lanes<R>::V;
  const V *a = static_cast<const V*>(x), *b = static_cast<const V*>(y);
  Wide<R> c[8];
  for (auto& w : c) w = Wide<R>::zero();
  for (int64_t k = 0; k < 24 * nv; k += 4)
    for (int m = 0; m < 2; ++m) {
      const Wide<R> xr = widen(a[k + 2 * m]), xi = widen(a[k + 2 * m + 1]), yr = widen(b[k + 2 * m]), yi = widen(b[k + 2 * m + 1]);
      const int chain = Lanes<R>::parts == 1 ? 4 * m : 0;  // single has two parts, so as many chains already
      c[chain].add_product(xr, yr), c[chain + 1].add_product(xi, yi);
      c[chain + 2].add_product(xr, yi), c[chain + 3].add_product(xi, yr);
    }
  ((c[0] + c[1]) + (c[4] + c[5])).write(sums);
  ((c[2] - c[3]) + (c[6] - c[7])).write(sums + Lanes<R>::n);
}

// Four chains of squares, of which a vector site uses each six times.
template <class R>
struct Squares {
  Wide<R> c[4];
  INLINE Squares() {
    for (auto& w : c) w = Wide<R>::zero();
  }
  INLINE void add(int chain, typename Lanes<R>::V v) {
    const Wide<R> w = widen(v);
    c[chain].add_product(w, w);
  }
  INLINE void write(double* to) const { ((c[0] + c[1]) + (c[2] + c[3])).write(to); }
};

template <class R>
void norm2(int64_t nv, const void* x, double* sums) {
  const auto* a = static_cast<const typename Lanes<R>::V*>(x);
  Squares<R> squares;
  for (int64_t k = 0; k < 24 * nv; k += 4)
    for (int m = 0; m < 4; ++m) squares.add(m, a[k + m]);
  squares.write(sums);
}

template <class R, bool REAL>
INLINE void axpy_norm2_loop(int64_t nv, const Scalar<R> a, const void* x, void* y, double* sums) {
  using V = typename Lanes<R>::V;
  const V* in = static_cast<const V*>(x);
  V* out = static_cast<V*>(y);
  Squares<R> squares;
  for (int64_t k = 0; k < 24 * nv; k += 4)
    for (int m = 0; m < 4; m += 2) {
      V yr = out[k + m], yi = out[k + m + 1];
      add_scaled<REAL, R>(a, in[k + m], in[k + m + 1], yr, yi);
      out[k + m] = yr, out[k + m + 1] = yi;
      squares.add(m, yr), squares.add(m + 1, yi);
    }
  squares.write(sums);
}

template <class R>
void axpy_norm2(int64_t nv, const void* a, bool real, const void* x, void* y, double* sums) {
  const Scalar<R> s(a);
  real ? axpy_norm2_loop<R, true>(nv, s, x, y, sums) : axpy_norm2_loop<R, false>(nv, s, x, y, sums);
}

template <class R, bool REAL>
INLINE void cg_update_loop(int64_t nv, const Scalar<R> a, const void* p, const void* ap, void* x, void* r, double* sums) {
  using V = typename Lanes<R>::V;
  const V *pv = static_cast<const V*>(p), *av = static_cast<const V*>(ap);
  V *xv = static_cast<V*>(x), *rv = static_cast<V*>(r);
  Squares<R> squares;
  for (int64_t k = 0; k < 24 * nv; k += 4)
    for (int m = 0; m < 4; m += 2) {
      V xr = xv[k + m], xi = xv[k + m + 1], rr = rv[k + m], ri = rv[k + m + 1];
      add_scaled<REAL, R>(a, pv[k + m], pv[k + m + 1], xr, xi);
      add_scaled<REAL, R>(a, -av[k + m], -av[k + m + 1], rr, ri);
      xv[k + m] = xr, xv[k + m + 1] = xi, rv[k + m] = rr, rv[k + m + 1] = ri;
      squares.add(m, rr), squares.add(m + 1, ri);
    }
  squares.write(sums);
}

template <class R>
void cg_update(int64_t nv, const void* a, bool real, const void* p, const void* ap, void* x, void* r, double* sums) {
  const Scalar<R> s(a);
  real ? cg_update_loop<R, true>(nv, s, p, ap, x, r, sums) : cg_update_loop<R, false>(nv, s, p, ap, x, r, sums);
}

#include "solve_kernels.h"

template <class R>
double multiply_adds(int64_t rounds) {
  using V = typename Lanes<R>::V;
  V c[12], a = broadcast<V>(R(0.999)), b = broadcast<V>(R(1e-3));
  for (int k = 0; k < 12; ++k) c[k] = broadcast<V>(R(k));
  for (int64_t i = 0; i < rounds; ++i)
    for (int k = 0; k < 12; ++k) {
      c[k] = c[k] * a + b;
    }
  V sum = c[0];
  for (int k = 1; k < 12; ++k) sum += c[k];
  return double(sum[0]);
}

#define LQCD_OPS(R)                                                                                              \
  {                                                                                                              \
    Lanes<R>::n, hop<R>, diagonal<R>, axpy<R>, xpay<R>, scale<R>, gamma5<R>, dot<R>, norm2<R>, axpy_norm2<R>,     \
        cg_update<R>, direction_update<R>, bicg_direction<R>, bicg_update<R>, multiply_adds<R>                   \
  }

const lqcd_native::KernelTable table = {LQCD_TEXT(LQCD_ISA), LQCD_OPS(float), LQCD_OPS(double)};

}  // namespace

extern "C" const lqcd_native::KernelTable* LQCD_PASTE(lqcd_native_kernels_, LQCD_ISA)() { return &table; }
