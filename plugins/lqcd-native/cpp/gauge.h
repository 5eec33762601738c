// Border of the gauge kernels, which are compiled once per instruction set; as in kernels.h nothing here has a body.
#pragma once

#include <cstdint>

namespace lqcd_native {

// Links in the host's order (T, Z, Y, X, 4, 3, 3), complex.
struct LinkView {
  const void* data;
  int32_t is_double;
  int32_t extent[4];
};

// Links by direction and parity, site last: half[mu][parity] is (3, 3, sites) complex double; forward and backward hold,
// per parity and direction, the number of the neighbour in the other half.
struct HalfLinks {
  const double* half[4][2];
  const int64_t* forward[2][4];
  const int64_t* backward[2][4];
  int64_t sites;  // of one half
};

struct GaugeOps {
  // sums[6] of Re tr P over sites [begin, end), planes (3,2) (3,1) (2,1) (3,0) (2,0) (1,0)
  void (*plaquettes)(const LinkView&, int64_t begin, int64_t end, double* sums);
  // A_mu of the sites, complex double, (sites, 3, 3) from the first site of the lattice on
  void (*staple)(const LinkView&, int32_t mu, int64_t begin, int64_t end, double* out);
  // the same on links [begin, end) of one parity; out is (3, 3, end - begin)
  void (*half_staple)(const HalfLinks&, int32_t mu, int32_t parity, int64_t begin, int64_t end, double* out);
  // blocks (sites, 2, 6, 6): sum over planes of spin[plane][block][s][r] F_plane
  void (*clover)(const LinkView&, const double* spin, int64_t begin, int64_t end, double* out);
  // matrices [begin, end) of (count, 6, 6) complex; false at the first singular one
  bool (*invert)(const double* in, double* out, int64_t begin, int64_t end);
  // exp of anti-Hermitian (count, 3, 3)
  void (*exponential)(const double* in, double* out, int64_t begin, int64_t end);
  // nearest SU(3) matrices; 0 if fine, 1 if one is not finite, 2 if one is singular
  int32_t (*project)(const double* in, double* out, int64_t begin, int64_t end);
};

}  // namespace lqcd_native

extern "C" {
const lqcd_native::GaugeOps* lqcd_native_gauge_baseline();
const lqcd_native::GaugeOps* lqcd_native_gauge_avx2();
const lqcd_native::GaugeOps* lqcd_native_gauge_avx512();
}
