// The border between code compiled once and kernels compiled once per instruction set: plain data and function pointers
// only. A kernel file must share no inline function with the rest (the linker would keep one copy, perhaps the one that
// needs AVX-512, for everybody), so nothing here has a body.
#pragma once

#include <cstdint>

namespace lqcd_native {

// A site-diagonal term s + B + i mu gamma5, ready for a layout.
struct DiagonalArgs {
  enum Kind : int32_t { scalar = 0, hermitian = 1, general = 2 };
  int32_t kind;
  double upper[2], lower[2];  // scalar kind: the complex factors of spins 0, 1 and of spins 2, 3
  double twist;               // hermitian kind: mu, added as + i mu on spins 0, 1 and - i mu on spins 2, 3
  const void* blocks;         // [vsite][chirality][36 or 72][lane]; see diagonal_site in kernels.cpp
};

// What becomes of H psi before it is stored: no pass of its own, no field in between.
enum Epilogue : int32_t {
  plain = 0,           // H psi
  times_diagonal = 1,  // D H psi
  diagonal_minus = 2,  // D x - H psi
  one_minus = 3,       // x - D H psi
};

// What a hop asks of memory before it needs it.
enum Prefetch : int32_t {
  nothing = 0,     // links and spinors are in cache: asking costs more than it brings
  streams = 1,     // links two sites and the neighbour in t four sites ahead, to the second-level cache
  neighbours = 2,  // links of the next site to the second-level cache, neighbours in t and z of the next site or column to the first
};

struct HopArgs {
  const void* links;        // [vsite][direction 8][colour column b][colour row a][re, im][lane], halved, phases folded;
                            // two rows: a = 0, 1 alone, phases not folded
  const int32_t* nbr;       // [vsite][8]: vector site of the neighbour, order t+ t- z+ z- y+ y- x+ x-
  const uint8_t* cross;     // [vsite]: bit d set if direction d leaves the sub-lattice, so that lanes move
  const int32_t* lane_map;  // [8][lane]: the lane that a lane reads from in direction d
  const void* const* in;    // one pointer per group of columns
  void* const* out;
  const void* const* x;     // for the epilogues with x, else null
  int32_t groups;           // groups of columns
  int32_t block;            // groups that share a link while it is in cache
  int32_t epilogue;
  int32_t dagger;           // gamma5 H gamma5 instead of H
  int32_t stream;           // store around the cache
  int32_t prefetch;
  int32_t two_rows;         // links of twelve numbers
  const uint8_t* edge;      // two rows: [vsite]: bit d set if a lane leaves the lattice in direction d
  const void* edge_phases;  // two rows: [8][re, im][lane], 1 for lanes that do not leave
  double third[8];          // two rows: factor of the cross product that gives the third
  double quantum;           // fixed point: what an entry of a link is a multiple of
  const void* const* below; // faces of a slab, one pointer per group, [vsite of a slice][12][lane]; null: t is periodic
  const void* const* above;
  int64_t per_slice, last_slice;  // vector sites of a time slice, and the first one of the last slice
  DiagonalArgs diagonal;
};

// Kernels of one storage. `nv` counts vector sites; `a` is [re, im][lane] of the arithmetic's type.
struct Ops {
  int32_t lanes;
  int32_t site_bytes, number_bytes;  // of a site of a spinor, and of a number, per lane
  void (*hop)(const HopArgs&, int64_t begin, int64_t end);
  void (*faces)(const HopArgs&, int32_t group, int64_t begin, int64_t end, void* down, void* up);  // see kernels.cpp
  void (*decode)(int64_t nv, const void* x, void* to);               // to 24 vectors a site of the arithmetic's type
  void (*encode)(int64_t nv, const void* from, void* x);             // and back
  void (*encode_vectors)(int64_t count, const void* from, void* to);  // vectors without a scale (links)
  void (*diagonal)(const DiagonalArgs&, const void* x, void* y, int64_t begin, int64_t end);
  void (*axpy)(int64_t nv, const void* a, bool real, const void* x, void* y);                  // y += a x
  void (*xpay)(int64_t nv, const void* a, bool real, const void* x, void* y);                  // y = x + a y
  void (*scale)(int64_t nv, const void* a, bool real, void* x);                                // x *= a
  void (*gamma5)(int64_t nv, const void* x, void* y);                                          // y = gamma5 x
  void (*dot)(int64_t nv, const void* x, const void* y, double* sums);                         // [re, im][lane]
  void (*norm2)(int64_t nv, const void* x, double* sums);                                      // [lane]
  void (*axpy_norm2)(int64_t nv, const void* a, bool real, const void* x, void* y, double* sums);
  void (*cg_update)(int64_t nv, const void* a, bool real, const void* p, const void* ap, void* x, void* r, double* sums);
  // For whole solves; see solve_kernels.h.
  void (*direction_update)(int64_t nv, const void* a, const void* b, const void* z, void* x, void* p);
  void (*bicg_direction)(int64_t nv, const void* b, const void* w, const void* r, const void* v, void* p);
  void (*bicg_update)(int64_t nv, const void* a, const void* w, const void* p, const void* t, const void* shadow, void* x, void* r,
                      double* sums);
  double (*multiply_adds)(int64_t rounds);  // 12 independent chains of vector multiply-adds, to measure the peak
};

struct KernelTable {
  const char* name;
  Ops f32, f64, f16, b16, q16;
};

}  // namespace lqcd_native

extern "C" {
const lqcd_native::KernelTable* lqcd_native_kernels_baseline();
const lqcd_native::KernelTable* lqcd_native_kernels_avx2();
const lqcd_native::KernelTable* lqcd_native_kernels_avx512();
}
