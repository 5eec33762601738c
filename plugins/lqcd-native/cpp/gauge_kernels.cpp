// Kernels on links, compiled once per instruction set with -DLQCD_ISA=<name>. Lanes are sites: matrices of as many sites as a
// vector has doubles are loaded into vectors and multiplied side by side. Arithmetic is double whatever the links are.
//
// 3 x 3 products: 198 flops each. Per site: plaquettes 6 x 2 products and 6 traces (2.6 kflop), a staple of one direction 12
// products (2.4), the clover term 6 planes x 4 leaves x 3 products (14).
//
// Everything is in an unnamed namespace and no inline function of the standard library is used: see kernels.h.

#include "gauge.h"

#define LQCD_PASTE2(a, b) a##b
#define LQCD_PASTE(a, b) LQCD_PASTE2(a, b)
#define INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define LQCD_BYTES 64
#elif defined(__AVX2__)
#define LQCD_BYTES 32
#else
#define LQCD_BYTES 16
#endif

namespace {

using lqcd_native::HalfLinks;
using lqcd_native::LinkView;

constexpr int W = LQCD_BYTES / 8;
typedef double V __attribute__((vector_size(LQCD_BYTES)));

struct Matrix {  // [row][column][re, im]
  V v[3][3][2];
};

// a b; with A or B true its adjoint. The sums run over k in order.
template <bool A, bool B>
INLINE Matrix times(const Matrix& a, const Matrix& b) {
  Matrix out;
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) {
      V re = {}, im = {};
      for (int k = 0; k < 3; ++k) {
        const V ar = A ? a.v[k][i][0] : a.v[i][k][0], ai = A ? -a.v[k][i][1] : a.v[i][k][1];
        const V br = B ? b.v[j][k][0] : b.v[k][j][0], bi = B ? -b.v[j][k][1] : b.v[k][j][1];
        re += ar * br, im += ar * bi;
        re -= ai * bi, im += ai * br;
      }
      out.v[i][j][0] = re, out.v[i][j][1] = im;
    }
  return out;
}

INLINE void add(Matrix& to, const Matrix& a) {
  V *t = &to.v[0][0][0];
  const V* s = &a.v[0][0][0];
  for (int k = 0; k < 18; ++k) t[k] += s[k];
}

INLINE V real_trace(const Matrix& a, const Matrix& b) {  // Re tr a b^dagger
  V sum = {};
  const V *s = &a.v[0][0][0], *t = &b.v[0][0][0];
  for (int k = 0; k < 18; ++k) sum += s[k] * t[k];
  return sum;
}

// W sites side by side, with their coordinates.
struct Sites {
  int64_t site[W];
  int32_t x[W][4];
};

INLINE Sites sites_from(const LinkView& u, int64_t first, int64_t end) {
  Sites s;
  for (int l = 0; l < W; ++l) {
    int64_t k = first + l < end ? first + l : end - 1;  // lanes over the end repeat the last site and are not used
    s.site[l] = k;
    for (int mu = 3; mu >= 0; --mu) s.x[l][mu] = int32_t(k % u.extent[mu]), k /= u.extent[mu];
  }
  return s;
}

INLINE Sites shifted(const LinkView& u, const Sites& s, int mu, int step) {
  Sites out = s;
  for (int l = 0; l < W; ++l) {
    int32_t c = s.x[l][mu] + step;
    if (c == u.extent[mu]) c = 0;
    if (c < 0) c = u.extent[mu] - 1;
    out.x[l][mu] = c;
    out.site[l] = ((int64_t(out.x[l][0]) * u.extent[1] + out.x[l][1]) * u.extent[2] + out.x[l][2]) * u.extent[3] + out.x[l][3];
  }
  return out;
}

template <class R>
INLINE void gather(const R* data, const Sites& s, int mu, Matrix& m) {
  double buffer[18][W];
  for (int l = 0; l < W; ++l) {
    const R* from = data + (s.site[l] * 4 + mu) * 18;
    for (int k = 0; k < 18; ++k) buffer[k][l] = double(from[k]);
  }
  __builtin_memcpy(&m, buffer, sizeof(m));
}

INLINE Matrix link(const LinkView& u, const Sites& s, int mu) {
  Matrix m;
  if (u.is_double) gather(static_cast<const double*>(u.data), s, mu, m);
  else gather(static_cast<const float*>(u.data), s, mu, m);
  return m;
}

INLINE void scatter(const Matrix& m, const Sites& s, int64_t count, double* out) {
  double buffer[18][W];
  __builtin_memcpy(buffer, &m, sizeof(m));
  for (int l = 0; l < W && l < count; ++l)
    for (int k = 0; k < 18; ++k) out[s.site[l] * 18 + k] = buffer[k][l];
}

constexpr int kPlanes[6][2] = {{3, 2}, {3, 1}, {2, 1}, {3, 0}, {2, 0}, {1, 0}};

void plaquettes(const LinkView& u, int64_t begin, int64_t end, double* sums) {
  for (int p = 0; p < 6; ++p) sums[p] = 0;
  for (int64_t first = begin; first < end; first += W) {
    const Sites x = sites_from(u, first, end);
    for (int p = 0; p < 6; ++p) {
      const int mu = kPlanes[p][0], nu = kPlanes[p][1];
      const Matrix a = times<false, false>(link(u, x, mu), link(u, shifted(u, x, mu, 1), nu));
      const Matrix b = times<false, false>(link(u, x, nu), link(u, shifted(u, x, nu, 1), mu));
      const V traces = real_trace(a, b);
      for (int l = 0; l < W && first + l < end; ++l) sums[p] += traces[l];
    }
  }
}

void staple(const LinkView& u, int32_t mu, int64_t begin, int64_t end, double* out) {
  for (int64_t first = begin; first < end; first += W) {
    const Sites x = sites_from(u, first, end), x_mu = shifted(u, x, mu, 1);
    Matrix total = {};
    for (int nu = 0; nu < 4; ++nu) {
      if (nu == mu) continue;
      const Sites down = shifted(u, x, nu, -1);
      // U_nu(x + mu) [U_nu(x) U_mu(x + nu)]^dagger, then [U_mu(y) U_nu(y + mu)]^dagger U_nu(y) with y = x - nu
      add(total, times<false, true>(link(u, x_mu, nu), times<false, false>(link(u, x, nu), link(u, shifted(u, x, nu, 1), mu))));
      add(total, times<true, false>(times<false, false>(link(u, down, mu), link(u, shifted(u, down, mu, 1), nu)), link(u, down, nu)));
    }
    scatter(total, x, end - first, out);
  }
}

INLINE Matrix half_link(const double* data, int64_t sites, const int64_t* at) {
  double buffer[18][W];
  for (int e = 0; e < 9; ++e)
    for (int l = 0; l < W; ++l) {
      const double* from = data + 2 * (e * sites + at[l]);
      buffer[2 * e][l] = from[0], buffer[2 * e + 1][l] = from[1];
    }
  Matrix m;
  __builtin_memcpy(&m, buffer, sizeof(m));
  return m;
}

void half_staple(const HalfLinks& u, int32_t mu, int32_t p, int64_t begin, int64_t end, double* out) {
  const int q = 1 - p;
  const int64_t count = end - begin;
  for (int64_t first = begin; first < end; first += W) {
    int64_t x[W], x_mu[W], up[W], down[W], down_mu[W];
    for (int l = 0; l < W; ++l) x[l] = first + l < end ? first + l : end - 1, x_mu[l] = u.forward[p][mu][x[l]];
    Matrix total = {};
    for (int nu = 0; nu < 4; ++nu) {
      if (nu == mu) continue;
      for (int l = 0; l < W; ++l) {
        up[l] = u.forward[p][nu][x[l]], down[l] = u.backward[p][nu][x[l]];
        down_mu[l] = u.forward[q][mu][down[l]];
      }
      const Matrix beside = times<false, false>(half_link(u.half[nu][p], u.sites, x), half_link(u.half[mu][q], u.sites, up));
      add(total, times<false, true>(half_link(u.half[nu][q], u.sites, x_mu), beside));
      const Matrix below = times<false, false>(half_link(u.half[mu][q], u.sites, down), half_link(u.half[nu][p], u.sites, down_mu));
      add(total, times<true, false>(below, half_link(u.half[nu][q], u.sites, down)));
    }
    double buffer[18][W];
    __builtin_memcpy(buffer, &total, sizeof(total));
    for (int l = 0; l < W && first + l < end; ++l)
      for (int e = 0; e < 9; ++e) {
        double* to = out + 2 * (e * count + first - begin + l);
        to[0] = buffer[2 * e][l], to[1] = buffer[2 * e + 1][l];
      }
  }
}

void clover(const LinkView& u, const double* spin, int64_t begin, int64_t end, double* out) {
  for (int64_t first = begin; first < end; first += W) {
    const Sites x = sites_from(u, first, end);
    Matrix f[6];
    for (int p = 0; p < 6; ++p) {
      const int mu = kPlanes[p][0], nu = kPlanes[p][1];
      const Sites xm = shifted(u, x, mu, 1), xn = shifted(u, x, nu, 1), mx = shifted(u, x, mu, -1), nx = shifted(u, x, nu, -1);
      const Sites mxn = shifted(u, mx, nu, 1), mnx = shifted(u, mx, nu, -1), xmn = shifted(u, nx, mu, 1);
      const Matrix u_mu = link(u, x, mu), u_nu = link(u, x, nu), back_mu = link(u, mx, mu), back_nu = link(u, nx, nu);
      // The four leaves, counterclockwise from x; see lqcd_core.gauge.clover_leaf_sum.
      Matrix q = times<false, true>(times<false, false>(u_mu, link(u, xm, nu)), times<false, false>(u_nu, link(u, xn, mu)));
      add(q, times<false, false>(times<false, true>(u_nu, link(u, mxn, mu)), times<true, false>(link(u, mx, nu), back_mu)));
      add(q, times<true, false>(times<false, false>(link(u, mnx, nu), back_mu), times<false, false>(link(u, mnx, mu), back_nu)));
      add(q, times<true, false>(back_nu, times<false, true>(times<false, false>(link(u, nx, mu), link(u, xmn, nu)), u_mu)));
      for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j) {
          f[p].v[i][j][0] = (q.v[i][j][0] - q.v[j][i][0]) * 0.125;
          f[p].v[i][j][1] = (q.v[i][j][1] + q.v[j][i][1]) * 0.125;
        }
    }
    for (int block = 0; block < 2; ++block)
      for (int s = 0; s < 2; ++s)
        for (int r = 0; r < 2; ++r) {
          Matrix sum = {};
          for (int p = 0; p < 6; ++p) {
            const double* c = spin + 2 * (((p * 2 + block) * 2 + s) * 2 + r);
            if (c[0] == 0 && c[1] == 0) continue;
            for (int i = 0; i < 3; ++i)
              for (int j = 0; j < 3; ++j) {
                sum.v[i][j][0] += c[0] * f[p].v[i][j][0] - c[1] * f[p].v[i][j][1];
                sum.v[i][j][1] += c[0] * f[p].v[i][j][1] + c[1] * f[p].v[i][j][0];
              }
          }
          double buffer[3][3][2][W];
          __builtin_memcpy(buffer, &sum, sizeof(sum));
          for (int l = 0; l < W && first + l < end; ++l)
            for (int i = 0; i < 3; ++i)
              for (int j = 0; j < 3; ++j) {
                double* to = out + 2 * (((x.site[l] * 2 + block) * 6 + 3 * s + i) * 6 + 3 * r + j);
                to[0] = buffer[i][j][0][l], to[1] = buffer[i][j][1][l];
              }
        }
  }
}

// -- one matrix at a time ----------------------------------------------------------------------------------------------

struct Complex {
  double re, im;
};
INLINE Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
INLINE Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
INLINE Complex operator*(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
INLINE Complex operator*(double a, Complex b) { return {a * b.re, a * b.im}; }
INLINE Complex conj(Complex a) { return {a.re, -a.im}; }
INLINE double norm(Complex a) { return a.re * a.re + a.im * a.im; }

// Gauss-Jordan with partial pivoting.
bool invert(const double* in, double* out, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) {
    Complex a[6][6], b[6][6];
    __builtin_memcpy(a, in + 72 * m, sizeof(a));
    for (int i = 0; i < 6; ++i)
      for (int j = 0; j < 6; ++j) b[i][j] = {i == j ? 1.0 : 0.0, 0.0};
    for (int k = 0; k < 6; ++k) {
      int pivot = k;
      for (int i = k + 1; i < 6; ++i)
        if (norm(a[i][k]) > norm(a[pivot][k])) pivot = i;
      const double size = norm(a[pivot][k]);
      if (size == 0) return false;
      if (pivot != k)
        for (int j = 0; j < 6; ++j) {
          const Complex s = a[k][j], t = b[k][j];
          a[k][j] = a[pivot][j], a[pivot][j] = s, b[k][j] = b[pivot][j], b[pivot][j] = t;
        }
      const Complex inverse = {a[k][k].re / size, -a[k][k].im / size};
      for (int j = 0; j < 6; ++j) a[k][j] = inverse * a[k][j], b[k][j] = inverse * b[k][j];
      for (int i = 0; i < 6; ++i) {
        if (i == k) continue;
        const Complex factor = a[i][k];
        for (int j = 0; j < 6; ++j) a[i][j] = a[i][j] - factor * a[k][j], b[i][j] = b[i][j] - factor * b[k][j];
      }
    }
    __builtin_memcpy(out + 72 * m, b, sizeof(b));
  }
  return true;
}

INLINE void multiply(const Complex (&a)[3][3], const Complex (&b)[3][3], Complex (&out)[3][3]) {
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) out[i][j] = a[i][0] * b[0][j] + a[i][1] * b[1][j] + a[i][2] * b[2][j];
}

INLINE Complex determinant(const Complex (&m)[3][3]) {
  return m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1]) + m[0][1] * (m[1][2] * m[2][0] - m[1][0] * m[2][2]) +
         m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0]);
}

INLINE Complex turn(double angle) { return {__builtin_cos(angle), __builtin_sin(angle)}; }

// exp A, A = i (Q + t), Q traceless Hermitian: exp iQ = f0 + f1 Q + f2 Q^2 with the analytic f of Morningstar and Peardon
// (Phys. Rev. D 69 (2004) 054501, hep-lat/0311018). They divide by 9u^2 - w^2 >= 2 c1, so below c1 = 1 the f are summed as the
// series of exp reduced by Q^3 = c1 Q + c0 instead: 24 terms leave less than 1e-19 there.
void exponential(const double* in, double* out, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) {
    Complex a[3][3], q[3][3], q2[3][3];
    __builtin_memcpy(a, in + 18 * m, sizeof(a));
    for (int i = 0; i < 3; ++i)  // Q + t = -i A, of which the Hermitian part counts
      for (int j = 0; j < 3; ++j) q[i][j] = {0.5 * (a[i][j].im + a[j][i].im), 0.5 * (a[j][i].re - a[i][j].re)};
    const double t = (q[0][0].re + q[1][1].re + q[2][2].re) / 3;
    for (int i = 0; i < 3; ++i) q[i][i] = {q[i][i].re - t, 0.0};
    multiply(q, q, q2);
    const double c1 = 0.5 * (q2[0][0].re + q2[1][1].re + q2[2][2].re), c0 = determinant(q).re;
    Complex f[3];
    if (c1 < 1.0) {
      double g[3] = {1, 0, 0};  // Q^n / n! = g0 + g1 Q + g2 Q^2
      f[0] = {1, 0}, f[1] = {0, 0}, f[2] = {0, 0};
      for (int n = 1; n <= 24; ++n) {
        const double next[3] = {g[2] * c0 / n, (g[0] + g[2] * c1) / n, g[1] / n};
        for (int k = 0; k < 3; ++k) {
          g[k] = next[k];
          const double signed_g = n % 4 == 2 || n % 4 == 3 ? -g[k] : g[k];
          if (n % 2) f[k].im += signed_g;
          else f[k].re += signed_g;
        }
      }
    } else {
      const double c0_max = 2 * (c1 / 3) * __builtin_sqrt(c1 / 3), size = __builtin_fabs(c0);
      const double theta = size < c0_max ? __builtin_acos(size / c0_max) : 0.0;
      const double u = __builtin_sqrt(c1 / 3) * __builtin_cos(theta / 3), w = __builtin_sqrt(c1) * __builtin_sin(theta / 3);
      const double w2 = w * w, u2 = u * u, cos_w = __builtin_cos(w);
      const double xi = __builtin_fabs(w) > 0.05 ? __builtin_sin(w) / w : 1 - w2 / 6 * (1 - w2 / 20 * (1 - w2 / 42 * (1 - w2 / 72)));
      const Complex two = turn(2 * u), one = turn(-u);
      const double below = 9 * u2 - w2;
      f[0] = (u2 - w2) * two + one * Complex{8 * u2 * cos_w, 2 * u * (3 * u2 + w2) * xi};
      f[1] = 2 * u * two - one * Complex{2 * u * cos_w, -(3 * u2 - w2) * xi};
      f[2] = two - one * Complex{cos_w, 3 * u * xi};
      for (int k = 0; k < 3; ++k) {
        f[k] = (1 / below) * f[k];
        if (c0 < 0) f[k] = (k == 1 ? -1.0 : 1.0) * conj(f[k]);
      }
    }
    const Complex phase = turn(t);
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 3; ++j) {
        Complex e = f[1] * q[i][j] + f[2] * q2[i][j];
        if (i == j) e = e + f[0];
        a[i][j] = t == 0 ? e : phase * e;
      }
    __builtin_memcpy(out + 18 * m, a, sizeof(a));
  }
}

// Polar decomposition by Newton's iteration X <- (g X + X^-dagger / g) / 2, g = |det X|^(-1/3), quadratically convergent; then the
// determinant's phase divided out evenly. Singular: the smallest singular value below 1e-8, seen as |X^-1| above 1e8.
int32_t project(const double* in, double* out, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) {
    Complex x[3][3], y[3][3];
    __builtin_memcpy(x, in + 18 * m, sizeof(x));
    for (int k = 0; k < 18; ++k)
      if (!__builtin_isfinite(in[18 * m + k])) return 1;
    for (int round = 0; round < 40; ++round) {
      const Complex det = determinant(x);
      const double size = norm(det);
      if (!(size > 0)) return 2;
      double inverse2 = 0, change = 0;
      for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j) {  // X^-dagger: conjugate cofactors over the conjugate determinant
          const int i1 = (i + 1) % 3, i2 = (i + 2) % 3, j1 = (j + 1) % 3, j2 = (j + 2) % 3;
          const Complex cofactor = x[i1][j1] * x[i2][j2] - x[i1][j2] * x[i2][j1];
          const Complex over = cofactor * conj(det);
          y[i][j] = conj(Complex{over.re / size, over.im / size});
          inverse2 += norm(y[i][j]);
        }
      if (round == 0 && !(inverse2 < 1e16)) return 2;
      const double scale = round < 6 ? 1 / __builtin_cbrt(__builtin_sqrt(size)) : 1.0;
      for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j) {
          const Complex next = 0.5 * (scale * x[i][j] + (1 / scale) * y[i][j]);
          change += norm(next - x[i][j]);
          x[i][j] = next;
        }
      if (change < 1e-30 || (round >= 6 && change < 1e-28)) break;
    }
    const Complex det = determinant(x);
    const Complex back = turn(-__builtin_atan2(det.im, det.re) / 3);
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 3; ++j) x[i][j] = back * x[i][j];
    __builtin_memcpy(out + 18 * m, x, sizeof(x));
  }
  return 0;
}

const lqcd_native::GaugeOps ops = {plaquettes, staple, half_staple, clover, invert, exponential, project};

}  // namespace

extern "C" const lqcd_native::GaugeOps* LQCD_PASTE(lqcd_native_gauge_, LQCD_ISA)() { return &ops; }
