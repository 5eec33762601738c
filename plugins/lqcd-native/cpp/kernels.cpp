// The kernels, compiled once per instruction set with -DLQCD_ISA=<name> and that set's flags.
//
//   H psi(x) = 1/2 sum_mu c_mu [ (1 - gamma_mu) U_mu(x) psi(x + mu) + (1 + gamma_mu) U_mu^dagger(x - mu) psi(x - mu) ]
//
// In the chiral basis gamma_mu = [[0, B], [B^dagger, 0]], so with S = -1 forward and +1 backward the half spinor
//   h = psi_u + S B psi_l   (2 spins),   chi = V h  (V: the folded link, or its adjoint, halved)
// adds chi to the upper and S B^dagger chi to the lower spins. Flops per site: 8 x 12 project, 8 x 132 multiply, 8 x 24 - 24
// add up: 1320. Bytes per site in single: 8 x 72 links (8 x 48 of two rows), 96 written, 96 to 768 read; half of it in 16 bits.
//
// Order of work: one direction and one spin at a time, so that 6 numbers of h, 6 of chi and 2 of the link stay in 16 registers;
// the 24 sums of a site live in L1. A direction costs 72 multiply-adds on 84 loads and 24 stores, so in cache the two load
// ports bind, not the multipliers. (All half spinors first and one colour row after the other was 10 % slower on a Zen 3.)
//
// Where there are 32 registers, t and z first and then y and x: those pair the same spins, so twelve sums stay in registers through
// four directions of one spin. Links are then read twice, the second time from L1 (half a site's links: 4.6 kB in single).
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
#if LQCD_BYTES == 64 || defined(__aarch64__)
#define LQCD_REGISTERS 32
#else
#define LQCD_REGISTERS 16
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

#include "storage_kernels.h"

template <int N>
struct Number {
  static constexpr int value = N;
};

// One spin of the half spinor: h = psi_spin + S (B psi_l)_spin. B of t, z, y, x is 1, i sigma_3, - i sigma_2, i sigma_1.
template <int MU, int SPIN>
constexpr int lower_partner() {  // the lower spin that B pairs with this one
  return MU == T || MU == Z ? 2 + SPIN : 3 - SPIN;
}

template <int MU, int S, int SPIN, class P, class V>
INLINE void project(const P& p, V* __restrict__ h) {
  constexpr int low = lower_partner<MU, SPIN>();
  for (int b = 0; b < 3; ++b) {
    const V r = p[6 * SPIN + 2 * b], i = p[6 * SPIN + 2 * b + 1], lr = p[6 * low + 2 * b], li = p[6 * low + 2 * b + 1];
    if (MU == T) h[2 * b] = plus<S>(r, lr), h[2 * b + 1] = plus<S>(i, li);
    else if (MU == Z) h[2 * b] = plus<SPIN ? S : -S>(r, li), h[2 * b + 1] = plus<SPIN ? -S : S>(i, lr);
    else if (MU == Y) h[2 * b] = plus<SPIN ? S : -S>(r, lr), h[2 * b + 1] = plus<SPIN ? S : -S>(i, li);
    else h[2 * b] = plus<-S>(r, li), h[2 * b + 1] = plus<S>(i, lr);
  }
}

// chi = V h. Six sums side by side, each with its products in the order of b, real part of the link first.
// Loads once what is used twice: compilers put a load into every instruction that takes one.
template <class V>
INLINE V load(const V* p) {
  V v = *p;
#if LQCD_BYTES == 64
  asm("" : "+v"(v));
#endif
  return v;
}

template <class V>
INLINE void multiply(const V* __restrict__ u, const V* __restrict__ h, V* __restrict__ c) {
  for (int b = 0; b < 3; ++b) {
    for (int a = 0; a < 3; ++a) {
      const V ur = load(u + 6 * b + 2 * a);
      if (b == 0) c[2 * a] = ur * h[0], c[2 * a + 1] = ur * h[1];
      else c[2 * a] += ur * h[2 * b], c[2 * a + 1] += ur * h[2 * b + 1];
    }
    for (int a = 0; a < 3; ++a) {
      const V ui = load(u + 6 * b + 2 * a + 1);
      c[2 * a] -= ui * h[2 * b + 1], c[2 * a + 1] += ui * h[2 * b];
    }
  }
}

// chi to the upper spin (up) and S B^dagger chi to the lower one that B pairs with it (lo).
template <int MU, int S, bool FIRST, int SPIN, class V>
INLINE void accumulate(const V* __restrict__ c, V* __restrict__ up, V* __restrict__ lo) {
  for (int a = 0; a < 6; a += 2) {
    const V cr = c[a], ci = c[a + 1];
    if (FIRST) {  // MU == T
      up[a] = cr, up[a + 1] = ci, lo[a] = S > 0 ? cr : -cr, lo[a + 1] = S > 0 ? ci : -ci;
    } else {
      up[a] += cr, up[a + 1] += ci;
      if (MU == T) lo[a] = plus<S>(lo[a], cr), lo[a + 1] = plus<S>(lo[a + 1], ci);
      else if (MU == Z) lo[a] = plus<SPIN ? -S : S>(lo[a], ci), lo[a + 1] = plus<SPIN ? S : -S>(lo[a + 1], cr);
      else if (MU == Y) lo[a] = plus<SPIN ? S : -S>(lo[a], cr), lo[a + 1] = plus<SPIN ? S : -S>(lo[a + 1], ci);
      else lo[a] = plus<S>(lo[a], ci), lo[a + 1] = plus<-S>(lo[a + 1], cr);
    }
  }
}

// -- links -------------------------------------------------------------------------------------------------------------

// Numbers of one direction in memory: 18, or 12 where the third row is made from the first two.
template <bool TWO_ROWS>
constexpr int kLink = TWO_ROWS ? 12 : 18;

// The matrix of direction d as [column b][row a][re, im]: where it lies, or unpacked into `room`.
//
// Two rows: V_2 = third * conj(V_0 x V_1), with third the inverse of the real factor that V carries beside an SU(3) matrix.
template <class S, bool TWO_ROWS>
INLINE const VectorOf<S>* matrix(const HopArgs& a, int64_t site, int d, VectorOf<S>* __restrict__ room) {
  using V = VectorOf<S>;
  constexpr int n = Lanes<typename S::R>::n, count = kLink<TWO_ROWS>;
  const char* from = static_cast<const char*>(a.links) + (site * 8 + d) * int64_t(count * n * S::number);
  if constexpr (!TWO_ROWS && !S::packed) {
    return reinterpret_cast<const V*>(from);
  } else {
    const auto get = [&](int k) {
      if constexpr (S::packed) return decode_number<S>(reinterpret_cast<const uint16_t*>(from) + k * n);
      else return reinterpret_cast<const V*>(from)[k];
    };
    if constexpr (!TWO_ROWS) {
      for (int k = 0; k < 18; ++k) room[k] = get(k);
    } else {
      for (int b = 0; b < 3; ++b)
        for (int k = 0; k < 4; ++k) room[6 * b + k] = get(4 * b + k);
      const V third = broadcast<V>(static_cast<typename S::R>(a.third[d]));
      for (int b = 0; b < 3; ++b) {
        const V *p = room + 6 * ((b + 1) % 3), *q = room + 6 * ((b + 2) % 3);  // columns b + 1 and b + 2: rows 0, 1
        const V re = p[0] * q[2] - p[1] * q[3] - q[0] * p[2] + q[1] * p[3];
        const V im = p[0] * q[3] + p[1] * q[2] - q[0] * p[3] - q[1] * p[2];
        room[6 * b + 4] = third * re, room[6 * b + 5] = -(third * im);
      }
    }
    return room;
  }
}

// Two rows carry no boundary phase: chi takes it where a lane lies on the edge of the lattice.
template <class V>
INLINE void turn(const void* phases, int d, V* __restrict__ c) {
  const V pr = static_cast<const V*>(phases)[2 * d], pi = static_cast<const V*>(phases)[2 * d + 1];
  for (int k = 0; k < 6; k += 2) {
    const V r = c[k], i = c[k + 1];
    c[k] = pr * r - pi * i, c[k + 1] = pr * i + pi * r;
  }
}

// -- one direction -----------------------------------------------------------------------------------------------------

// What is asked for while a site is computed, a direction at a time beside its arithmetic; null: nothing. A site's links are longer
// than a page, where the processor's own prefetcher stops. They go to the second-level cache: 9 kB a site of them would
// drive everything else out of the first. See `prefetch` in HopArgs.
struct Ahead {
  const char* links = nullptr;
  const char* psi = nullptr;
  const int32_t* nbr = nullptr;
  bool near = false;  // neighbours in t and z into the first-level cache; else the one ahead in t into the second
};

template <class S, bool TWO_ROWS, int D>
INLINE void prefetch(const Ahead& ahead) {
  constexpr int n = Lanes<typename S::R>::n, bytes = kLink<TWO_ROWS> * n * S::number;
  if (ahead.links)
#pragma GCC unroll 32
    for (int k = 0; k < bytes; k += 64) __builtin_prefetch(ahead.links + D * bytes + k, 0, 2);
  if (D < 4 && ahead.psi) {
    const char* p = ahead.psi + int64_t(ahead.nbr[D]) * (S::site * n);
    if (ahead.near) {
#pragma GCC unroll 32
      for (int k = 0; k < S::site * n; k += 64) __builtin_prefetch(p + k);
    } else if (D == 0) {
#pragma GCC unroll 32
      for (int k = 0; k < S::site * n; k += 64) __builtin_prefetch(p + k, 0, 2);
    }
  }
}

// One spin of one direction: D = 2 MU for the neighbour ahead, 2 MU + 1 for the one behind; SIGN of gamma_mu in its projector.
template <class S, bool TWO_ROWS, int D, int SIGN, int SPIN>
INLINE void half_direction(const HopArgs& a, int64_t site, const Site<S>& p, const VectorOf<S>* u, const Shuffle* sh,
                           VectorOf<S>* __restrict__ up, VectorOf<S>* __restrict__ lo) {
  using V = VectorOf<S>;
  constexpr int mu = D / 2;
  V h[6], c[6];
  project<mu, SIGN, SPIN>(p, h);
  if constexpr (S::scaled) {
    const V scale = p.scale() * kQuantum;
    for (int k = 0; k < 6; ++k) h[k] *= scale;
  }
  if (D > 1 && __builtin_expect(a.cross[site] >> D & 1, 0))
    for (int k = 0; k < 6; ++k) h[k] = shuffle(h[k], sh[D]);
  multiply(u, h, c);
  if (TWO_ROWS && __builtin_expect(a.edge[site] >> D & 1, 0)) turn(a.edge_phases, D, c);
  accumulate<mu, SIGN, D == 0, SPIN>(c, up, lo);
}

// Both spins of a direction, sums in L1.
template <class S, bool TWO_ROWS, int D, int SIGN>
INLINE void direction(const HopArgs& a, int64_t site, const void* psi, const Ahead& ahead, const Shuffle* sh,
                      VectorOf<S>* __restrict__ o) {
  prefetch<S, TWO_ROWS, D>(ahead);
  VectorOf<S> room[18];
  const VectorOf<S>* u = matrix<S, TWO_ROWS>(a, site, D, room);
  const Site<S> p(psi, a.nbr[8 * site + D]);
  half_direction<S, TWO_ROWS, D, SIGN, 0>(a, site, p, u, sh, o, o + 6 * lower_partner<D / 2, 0>());
  half_direction<S, TWO_ROWS, D, SIGN, 1>(a, site, p, u, sh, o + 6, o + 6 * lower_partner<D / 2, 1>());
}

// The hop in t out of a face: from the slice ahead come half spinors, from the one behind what its owner multiplied.
template <class S, bool TWO_ROWS, int SIGN>
__attribute__((noinline)) void from_above(const HopArgs& a, int64_t site, const VectorOf<S>* h, VectorOf<S>* __restrict__ o) {
  VectorOf<S> room[18], c[6];
  const VectorOf<S>* u = matrix<S, TWO_ROWS>(a, site, 0, room);
  const bool edge = TWO_ROWS && (a.edge[site] & 1);
  multiply(u, h, c);
  if (edge) turn(a.edge_phases, 0, c);
  accumulate<T, SIGN, true, 0>(c, o, o + 12);
  multiply(u, h + 6, c);
  if (edge) turn(a.edge_phases, 0, c);
  accumulate<T, SIGN, true, 1>(c, o + 6, o + 18);
}

template <class S, int SIGN>
__attribute__((noinline)) void from_below(const VectorOf<S>* chi, VectorOf<S>* __restrict__ o) {
  accumulate<T, SIGN, false, 0>(chi, o, o + 12);
  accumulate<T, SIGN, false, 1>(chi + 6, o + 6, o + 18);
}

// H psi at one vector site, into acc[spin][colour][re, im]. D = -1 for H, +1 for gamma5 H gamma5 (projectors swapped).
template <class S, bool TWO_ROWS, int D>
INLINE void hop_site(const HopArgs& a, int64_t s, const void* psi, const Ahead& ahead, const VectorOf<S>* below,
                     const VectorOf<S>* above, const Shuffle* sh, VectorOf<S>* __restrict__ acc) {
  if (__builtin_expect(above != nullptr, 0)) from_above<S, TWO_ROWS, D>(a, s, above, acc);
  else direction<S, TWO_ROWS, 0, D>(a, s, psi, ahead, sh, acc);
  if (__builtin_expect(below != nullptr, 0)) from_below<S, -D>(below, acc);
  else direction<S, TWO_ROWS, 1, -D>(a, s, psi, ahead, sh, acc);
  direction<S, TWO_ROWS, 2, D>(a, s, psi, ahead, sh, acc);
  direction<S, TWO_ROWS, 3, -D>(a, s, psi, ahead, sh, acc);
  direction<S, TWO_ROWS, 4, D>(a, s, psi, ahead, sh, acc);
  direction<S, TWO_ROWS, 5, -D>(a, s, psi, ahead, sh, acc);
  direction<S, TWO_ROWS, 6, D>(a, s, psi, ahead, sh, acc);
  direction<S, TWO_ROWS, 7, -D>(a, s, psi, ahead, sh, acc);
}

// The same where there are 32 registers: t and z, which pair the same spins, and then y and x, one spin at a time. The twelve
// sums of an upper spin and its partner stay in registers through four directions, beside 6 numbers of h, 6 of chi and 2 of the link;
// every sum has its terms in the order of hop_site, so that both give the same bits.
template <class S, bool TWO_ROWS, int D, int FIRST, int SPIN>
INLINE void quarter_site(const HopArgs& a, int64_t s, const Site<S>* p, const VectorOf<S>* const* u, const Ahead& ahead, const Shuffle* sh,
                         VectorOf<S>* __restrict__ acc) {
  using V = VectorOf<S>;
  V *to_up = acc + 6 * SPIN, *to_lo = acc + 6 * lower_partner<FIRST / 2, SPIN>();
  V up[6], lo[6];
  if (FIRST)
    for (int k = 0; k < 6; ++k) up[k] = to_up[k], lo[k] = to_lo[k];
#define LQCD_PREFETCH(k) if (SPIN == (k) / 2) prefetch<S, TWO_ROWS, FIRST + k>(ahead)
  LQCD_PREFETCH(0);
  half_direction<S, TWO_ROWS, FIRST, D, SPIN>(a, s, p[0], u[0], sh, up, lo);
  LQCD_PREFETCH(1);
  half_direction<S, TWO_ROWS, FIRST + 1, -D, SPIN>(a, s, p[1], u[1], sh, up, lo);
  LQCD_PREFETCH(2);
  half_direction<S, TWO_ROWS, FIRST + 2, D, SPIN>(a, s, p[2], u[2], sh, up, lo);
  LQCD_PREFETCH(3);
  half_direction<S, TWO_ROWS, FIRST + 3, -D, SPIN>(a, s, p[3], u[3], sh, up, lo);
  for (int k = 0; k < 6; ++k) to_up[k] = up[k], to_lo[k] = lo[k];
}

template <class S, bool TWO_ROWS, int D, int FIRST>
INLINE void half_site(const HopArgs& a, int64_t s, const void* psi, const Ahead& ahead, const Shuffle* sh, VectorOf<S>* __restrict__ acc) {
  VectorOf<S> room[4][18];
  const VectorOf<S>* u[4];
  const int32_t* nbr = a.nbr + 8 * s + FIRST;
  const Site<S> p[4] = {{psi, nbr[0]}, {psi, nbr[1]}, {psi, nbr[2]}, {psi, nbr[3]}};
  for (int k = 0; k < 4; ++k) u[k] = matrix<S, TWO_ROWS>(a, s, FIRST + k, room[k]);
  quarter_site<S, TWO_ROWS, D, FIRST, 0>(a, s, p, u, ahead, sh, acc);
  for (auto& m : u) asm volatile("" : "+r"(m));  // else the compiler keeps every number of the links for the other spin, on the stack
  quarter_site<S, TWO_ROWS, D, FIRST, 1>(a, s, p, u, ahead, sh, acc);
}

template <class S, bool TWO_ROWS, int D>
__attribute__((noinline)) void hop_face_site(const HopArgs& a, int64_t s, const void* psi, const VectorOf<S>* below,
                     const VectorOf<S>* above, const Shuffle* sh, VectorOf<S>* __restrict__ acc) {
  hop_site<S, TWO_ROWS, D>(a, s, psi, Ahead{}, below, above, sh, acc);
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

// -- the loop over sites -----------------------------------------------------------------------------------------------

// What becomes of H psi before it is stored.
template <class S>
INLINE void finish(const HopArgs& a, int g, int64_t s, const VectorOf<S>* acc) {
  using V = VectorOf<S>;
  void* out = a.out[g];
  if (a.epilogue == lqcd_native::plain) return store_site<S>(out, s, acc, a.stream);
  V x[24], result[24];
  if (a.epilogue != lqcd_native::times_diagonal) load_site<S>(a.x[g], s, x);
  diagonal_site<typename S::R>(a.diagonal, s, a.epilogue == lqcd_native::diagonal_minus ? x : acc, result);
  if (a.epilogue == lqcd_native::diagonal_minus)
    for (int k = 0; k < 24; ++k) result[k] -= acc[k];
  else if (a.epilogue == lqcd_native::one_minus)
    for (int k = 0; k < 24; ++k) result[k] = x[k] - result[k];
  store_site<S>(out, s, result, a.stream);
}

template <class S, bool TWO_ROWS, int D>
void hop_loop(const HopArgs& a, int64_t begin, int64_t end) {
  using R = typename S::R;
  using V = VectorOf<S>;
  constexpr int link_bytes = 8 * kLink<TWO_ROWS> * Lanes<R>::n * S::number;
  Shuffle shuffles[8];
  for (int d = 0; d < 8; ++d) shuffles[d] = make_shuffle<R>(a.lane_map + d * Lanes<R>::n);
  for (int first = 0; first < a.groups; first += a.block) {
    const int last = first + a.block < a.groups ? first + a.block : a.groups;
    for (int64_t s = begin; s < end; ++s) {
      for (int g = first; g < last; ++g) {
        V acc[24];
        Ahead ahead;
        const auto links = [&](int64_t site) { return static_cast<const char*>(a.links) + site * link_bytes; };
        if (a.prefetch == lqcd_native::streams) {
          if (s + 2 < end) ahead.links = links(s + 2);
          if (s + 4 < end) ahead.psi = static_cast<const char*>(a.in[g]), ahead.nbr = a.nbr + 8 * (s + 4);
        } else if (a.prefetch == lqcd_native::neighbours) {
          const bool more = g + 1 < last, go_on = s + 1 < end;
          if (!more && go_on) ahead.links = links(s + 1);
          if (more || go_on)
            ahead.psi = static_cast<const char*>(a.in[more ? g + 1 : first]), ahead.nbr = a.nbr + 8 * (more ? s : s + 1);
          ahead.near = true;
        }
        const V* below = a.below && s < a.per_slice ? static_cast<const V*>(a.below[g]) + 12 * s : nullptr;
        const V* above = a.above && s >= a.last_slice ? static_cast<const V*>(a.above[g]) + 12 * (s - a.last_slice) : nullptr;
        if constexpr (LQCD_REGISTERS < 32) {
          hop_site<S, TWO_ROWS, D>(a, s, a.in[g], ahead, below, above, shuffles, acc);
        } else if (__builtin_expect(below || above, 0)) {
          hop_face_site<S, TWO_ROWS, D>(a, s, a.in[g], below, above, shuffles, acc);
        } else {
          half_site<S, TWO_ROWS, D, 0>(a, s, a.in[g], ahead, shuffles, acc);
          half_site<S, TWO_ROWS, D, 4>(a, s, a.in[g], ahead, shuffles, acc);
        }
        if constexpr (S::scaled) {
          const V unit = broadcast<V>(float(a.quantum));
          for (int k = 0; k < 24; ++k) acc[k] *= unit;
        }
        finish<S>(a, g, s, acc);
      }
    }
  }
  if (a.stream) store_fence();  // other threads read what was stored around the cache
}

template <class S>
void hop(const HopArgs& a, int64_t begin, int64_t end) {
  if (a.two_rows) a.dagger ? hop_loop<S, true, +1>(a, begin, end) : hop_loop<S, true, -1>(a, begin, end);
  else a.dagger ? hop_loop<S, false, +1>(a, begin, end) : hop_loop<S, false, -1>(a, begin, end);
}

// Faces of a slab at vector sites [begin, end) of a slice, for one group: what the hop ahead of the last slice would read
// (`down`, from the first slice), and what the hop behind the first slice would add (`up`, from the last), as if t were
// periodic. 12 vectors a site each, in the arithmetic's type. Lanes never move in t.
template <class S, bool TWO_ROWS, int D>
void face_loop(const HopArgs& a, int group, int64_t begin, int64_t end, void* down, void* up) {
  using V = VectorOf<S>;
  for (int64_t s = begin; s < end; ++s) {
    V* out = static_cast<V*>(down) + 12 * s;
    const auto half = [&](const Site<S>& p, auto sign, V* h) {
      project<T, decltype(sign)::value, 0>(p, h), project<T, decltype(sign)::value, 1>(p, h + 6);
      if constexpr (S::scaled) {
        const V scale = p.scale() * kQuantum;
        for (int k = 0; k < 12; ++k) h[k] *= scale;
      }
    };
    half(Site<S>(a.in[group], a.nbr[8 * (a.last_slice + s)]), Number<D>{}, out);
    V h[12], room[18];
    half(Site<S>(a.in[group], a.nbr[8 * s + 1]), Number<-D>{}, h);
    const V* u = matrix<S, TWO_ROWS>(a, s, 1, room);
    out = static_cast<V*>(up) + 12 * s;
    for (int spin = 0; spin < 2; ++spin) {
      multiply(u, h + 6 * spin, out + 6 * spin);
      if (TWO_ROWS && (a.edge[s] & 2)) turn(a.edge_phases, 1, out + 6 * spin);
    }
  }
}

template <class S>
void faces(const HopArgs& a, int32_t group, int64_t begin, int64_t end, void* down, void* up) {
  if (a.two_rows) a.dagger ? face_loop<S, true, +1>(a, group, begin, end, down, up) : face_loop<S, true, -1>(a, group, begin, end, down, up);
  else a.dagger ? face_loop<S, false, +1>(a, group, begin, end, down, up) : face_loop<S, false, -1>(a, group, begin, end, down, up);
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

#include "stored_kernels.h"

template <class S>
constexpr lqcd_native::Ops ops_of() {
  using O = Stored<S>;
  return {Lanes<typename S::R>::n, S::site, S::number, hop<S>, faces<S>, decode<S>, encode<S>, encode_vectors<S>,
          O::diagonal, O::axpy, O::xpay, O::scale, O::gamma5, O::dot, O::norm2, O::axpy_norm2, O::cg_update,
          O::direction_update, O::bicg_direction, O::bicg_update, multiply_adds<typename S::R>};
}

const lqcd_native::KernelTable table = {LQCD_TEXT(LQCD_ISA), ops_of<F32>(), ops_of<F64>(), ops_of<F16>(), ops_of<B16>(), ops_of<Q16>()};

}  // namespace

extern "C" const lqcd_native::KernelTable* LQCD_PASTE(lqcd_native_kernels_, LQCD_ISA)() { return &table; }
