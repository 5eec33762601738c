#include "solve.h"

#include <cmath>
#include <limits>
#include <numeric>

namespace lqcd_native {

namespace {

using Mask = std::vector<char>;
using Reals = std::vector<double>;
using Complexes = std::vector<std::complex<double>>;
using Columns = std::vector<int>;

constexpr int kCheckedTogether = 4;  // columns whose true residual is recomputed together: no more memory than the iteration

bool any(const Mask& m) { return std::find_if(m.begin(), m.end(), [](char c) { return c; }) != m.end(); }
bool all(const Mask& m) { return std::find(m.begin(), m.end(), char(0)) == m.end(); }

Columns where(const Mask& m) {
  Columns out;
  for (size_t k = 0; k < m.size(); ++k)
    if (m[k]) out.push_back(int(k));
  return out;
}

template <class T>
std::vector<T> pick(const std::vector<T>& v, const Columns& columns) {
  std::vector<T> out;
  for (int c : columns) out.push_back(v[c]);
  return out;
}

// above / below where it holds and the divisor is not zero, else 0
template <class T, class U>
T ratio(T above, U below, bool holds) {
  return holds && below != U(0) ? above / below : T(0);
}

Complexes complexes(const Reals& a) { return Complexes(a.begin(), a.end()); }

// -- vectors without the GIL -------------------------------------------------------------------------------------------

// Operations on fields of one layout; a number per column.
class Vectors {
 public:
  Vectors(const System& system) : layout_(system.layout), algebra_(system.layout, system.threads) {}

  const Layout& layout() const { return *layout_; }
  const Algebra& algebra() const { return algebra_; }

  FieldPtr make(int n) const { return std::make_unique<Field>(layout_, n); }

  FieldPtr zeros(int n) const {
    auto out = make(n);
    clear(*out);
    return out;
  }

  void clear(Field& x) const {
    each(x.n, [&](int g, int64_t b, int64_t nv, int64_t) { std::memset(at(x, g, b), 0, algebra_.bytes(nv)); });
  }

  FieldPtr copy(const Field& x) const {
    auto out = make(x.n);
    each(x.n, [&](int g, int64_t b, int64_t nv, int64_t) { std::memcpy(at(*out, g, b), at(x, g, b), algebra_.bytes(nv)); });
    return out;
  }

  FieldPtr take(const Field& x, const Columns& columns) const {
    auto out = columns.size() % layout_->rhs_lanes ? zeros(int(columns.size())) : make(int(columns.size()));
    algebra_.take_into(x, columns, *out);
    return out;
  }

  void put(Field& x, const Columns& columns, const Field& part) const { algebra_.put_into(x, columns, part); }

  FieldPtr convert(const Field& x) const {
    auto out = make(x.n);
    algebra_.convert_into(x, *out);
    return out;
  }

  void axpy(const Complexes& a, const Field& x, Field& y) const {
    const Algebra::Factors f(*layout_, a);
    each(x.n, [&](int g, int64_t b, int64_t nv, int64_t) { ops().axpy(nv, f.of(g), f.real, at(x, g, b), at(y, g, b)); });
  }

  void xpay(const Field& x, const Complexes& a, Field& y) const {
    const Algebra::Factors f(*layout_, a);
    each(x.n, [&](int g, int64_t b, int64_t nv, int64_t) { ops().xpay(nv, f.of(g), f.real, at(x, g, b), at(y, g, b)); });
  }

  void scale(const Reals& a, Field& x) const {
    const Algebra::Factors f(*layout_, complexes(a));
    each(x.n, [&](int g, int64_t b, int64_t nv, int64_t) { ops().scale(nv, f.of(g), f.real, at(x, g, b)); });
  }

  Reals axpy_norm2(const Complexes& a, const Field& x, Field& y) const {
    const Algebra::Factors f(*layout_, a);
    return totals(algebra_.sums(x.n, 1, [&](int g, int64_t b, int64_t nv, double* s) {
      ops().axpy_norm2(nv, f.of(g), f.real, at(x, g, b), at(y, g, b), s);
    }), x.n, 1, 0);
  }

  Reals norm2(const Field& x) const {
    return totals(algebra_.sums(x.n, 1, [&](int g, int64_t b, int64_t nv, double* s) { ops().norm2(nv, at(x, g, b), s); }), x.n, 1, 0);
  }

  Complexes inner(const Field& x, const Field& y) const {
    const auto slices = algebra_.sums(x.n, 2, [&](int g, int64_t b, int64_t nv, double* s) { ops().dot(nv, at(x, g, b), at(y, g, b), s); });
    return complex_totals(slices, x.n, 2, 0);
  }

  // x += a p, p = z + b p
  void direction_update(const Reals& a, const Reals& b, const Field& z, Field& x, Field& p) const {
    const Algebra::Factors fa(*layout_, complexes(a)), fb(*layout_, complexes(b));
    each(x.n, [&](int g, int64_t s, int64_t nv, int64_t) {
      ops().direction_update(nv, fa.of(g), fb.of(g), at(z, g, s), at(x, g, s), at(p, g, s));
    });
  }

  // p = r + b (p - w v)
  void bicg_direction(const Complexes& b, const Complexes& w, const Field& r, const Field& v, Field& p) const {
    const Algebra::Factors fb(*layout_, b), fw(*layout_, w);
    each(p.n, [&](int g, int64_t s, int64_t nv, int64_t) {
      ops().bicg_direction(nv, fb.of(g), fw.of(g), at(r, g, s), at(v, g, s), at(p, g, s));
    });
  }

  // x += a p + w r, r -= w t; (shadow^dagger r, |r|^2) of the new r
  std::pair<Complexes, Reals> bicg_update(const Complexes& a, const Complexes& w, const Field& p, const Field& t, const Field& shadow,
                                          Field& x, Field& r) const {
    const Algebra::Factors fa(*layout_, a), fw(*layout_, w);
    const auto slices = algebra_.sums(x.n, 3, [&](int g, int64_t b, int64_t nv, double* s) {
      ops().bicg_update(nv, fa.of(g), fw.of(g), at(p, g, b), at(t, g, b), at(shadow, g, b), at(x, g, b), at(r, g, b), s);
    });
    return {complex_totals(slices, x.n, 3, 0), totals(slices, x.n, 3, 2)};
  }

  const Ops& ops() const { return layout_->ops(); }
  void* at(const Field& x, int g, int64_t begin) const { return algebra_.at(x, g, begin); }

  Reals totals(const std::vector<double>& slices, int n, int parts, int part) const {
    const size_t t = layout_->extent[0];
    Reals out(n);
    for (int c = 0; c < n; ++c) out[c] = exact_sum(&slices[c * t * parts + part], t, parts);
    return out;
  }

  Complexes complex_totals(const std::vector<double>& slices, int n, int parts, int part) const {
    const Reals re = totals(slices, n, parts, part), im = totals(slices, n, parts, part + 1);
    Complexes out(n);
    for (int c = 0; c < n; ++c) out[c] = {re[c], im[c]};
    return out;
  }

 private:
  template <class F>
  void each(int n, F&& f) const {
    algebra_.each(n, f);
  }

  std::shared_ptr<Layout> layout_;
  Algebra algebra_;
};

// -- the operator ------------------------------------------------------------------------------------------------------

// y = A x into fields that are kept for the next time, with sums over y while it is in cache.
class Operator {
 public:
  Operator(const System& system, const Vectors& vectors) : system_(system), v_(vectors) {}

  void apply(const Field& x, Field& y) { run(system_.apply, x, y); }

  Reals apply_norm2(const Field& x, Field& y) { return run_norm2(system_.apply, x, y); }
  Reals adjoint_norm2(const Field& x, Field& y) { return run_norm2(system_.adjoint, x, y); }

  // (w^dagger y, |y|^2) of y = A x
  std::pair<Complexes, Reals> apply_dot(const Field& x, Field& y, const Field& w) {
    const auto slices = run_sums(system_.apply, x, y, 3, [&](int g, int64_t begin, int64_t nv, double* s) {
      v_.ops().dot(nv, v_.at(w, g, begin), v_.at(y, g, begin), s);
      v_.ops().norm2(nv, v_.at(y, g, begin), s + 2 * v_.layout().lanes);
    });
    return {v_.complex_totals(slices, x.n, 3, 0), v_.totals(slices, x.n, 3, 2)};
  }

  // Memory for another number of columns is found again; that of the present one is given back.
  void release() { middle_.reset(), scaled_.reset(); }

  int64_t applications = 0;

 private:
  // What the last pass reads, having run those before it.
  const Field& lead(const Passes& passes, const Field& x) {
    ++applications;
    if (!passes.first) return x;
    const Field* from = &x;
    if (passes.before) {
      ready(scaled_, system_.layout, x.n);
      const int64_t blocks = blocks_of(v_.layout());
      parallel(v_.algebra().threads_for(x.n), blocks, [&](int64_t k) {  // all columns of a block: its entries are read once
        const SiteRange r = block_range(v_.layout(), k);
        for (int g = 0; g < x.groups(); ++g)
          v_.ops().diagonal(passes.before->args, x.group(g), scaled_->group(g), r.begin, r.begin + r.count);
      });
      from = scaled_.get();
    }
    ready(middle_, passes.first->target(), x.n);
    passes.first->run(*from, nullptr, *middle_);
    return *middle_;
  }

  void run(const Passes& passes, const Field& x, Field& y) { passes.last->run(lead(passes, x), &x, y); }

  template <class F>
  std::vector<double> run_sums(const Passes& passes, const Field& x, Field& y, int parts, F&& kernel) {
    const Field& from = lead(passes, x);
    partial_.resize(v_.algebra().partials(x.n, parts));
    const int64_t blocks = blocks_of(v_.layout());
    passes.last->run(from, &x, y, [&](int g, int64_t block, const SiteRange& r) {
      kernel(g, r.begin, r.count, &partial_[(g * blocks + block) * parts * v_.layout().lanes]);
    });
    return v_.algebra().fold(partial_.data(), x.n, parts);
  }

  Reals run_norm2(const Passes& passes, const Field& x, Field& y) {
    return v_.totals(run_sums(passes, x, y, 1, [&](int g, int64_t begin, int64_t nv, double* s) { v_.ops().norm2(nv, v_.at(y, g, begin), s); }),
                     x.n, 1, 0);
  }

  static void ready(FieldPtr& field, const std::shared_ptr<Layout>& layout, int n) {
    if (!field || field->n != n) field.reset(), field = std::make_unique<Field>(layout, n);
  }

  const System& system_;
  const Vectors& v_;
  FieldPtr middle_, scaled_;
  std::vector<double> partial_;
};

// -- the account of the columns ----------------------------------------------------------------------------------------

struct Book {
  Reals targets;
  std::vector<Why> reasons;
  std::vector<int64_t> iterations;
  Reals residuals, truths;  // as the recurrence knows them; verified ones
  std::vector<Reals> history;
  Watch watch;

  Book(Reals t, Watch w)
      : targets(std::move(t)), reasons(targets.size(), Why::live), iterations(targets.size(), 0),
        residuals(targets.size(), NAN), truths(targets.size(), NAN), watch(std::move(w)) {}

  size_t n() const { return targets.size(); }
  bool is_live(int c) const { return reasons[c] == Why::live; }
  bool any_live() const { return std::find(reasons.begin(), reasons.end(), Why::live) != reasons.end(); }

  Columns live() const {
    Columns out;
    for (size_t c = 0; c < n(); ++c)
      if (is_live(int(c))) out.push_back(int(c));
    return out;
  }

  Mask live_among(const Columns& present) const {
    Mask out;
    for (int c : present) out.push_back(is_live(c));
    return out;
  }

  void stop(int c, Why why) {
    if (is_live(c)) reasons[c] = why, iterations[c] = int64_t(history.size());
  }

  void stop_all(Why why) {
    for (size_t c = 0; c < n(); ++c) stop(int(c), why);
  }

  void verified(int c, double residual) {
    truths[c] = residual;
    if (residual <= targets[c]) stop(c, Why::converged);
  }

  void record(Reals now) {
    residuals = std::move(now);
    history.push_back(residuals);
    watch(int64_t(history.size()), residuals);
  }

  // Never said of anything but the true residual, and always if it holds.
  void settle() {
    for (size_t c = 0; c < n(); ++c)
      if (!good(int(c)) && truths[c] <= targets[c]) reasons[c] = Why::converged;
  }

  bool good(int c) const { return reasons[c] == Why::converged || reasons[c] == Why::zero_source; }
};

// 2^-k per column with |b| 2^-k in [1/2, 1): scaling by it is exact, and takes tiny sources out of underflow.
Reals power_of_two(const Reals& norms, const Layout& layout) {
  const int limit = layout.is_double ? 500 : 100;
  Reals out;
  for (double norm : norms) {
    int exponent = 1;
    if (std::isfinite(norm) && norm > 0) std::frexp(norm, &exponent);
    else std::frexp(1.0, &exponent);
    out.push_back(std::ldexp(1.0, -std::clamp(exponent, -limit, limit)));
  }
  return out;
}

double epsilon_of(const Layout& layout) {
  return layout.is_double ? std::numeric_limits<double>::epsilon() : double(std::numeric_limits<float>::epsilon());
}

// -- recurrences -------------------------------------------------------------------------------------------------------

struct Failures {
  Mask not_finite, broken;
};

// One iteration on the columns present: x, r = b - A x as it knows it, rr = |r|^2.
class Steps {
 public:
  Steps(const Vectors& v, Operator& a, FieldPtr x, FieldPtr r, Reals rr)
      : x(std::move(x)), r(std::move(r)), rr(std::move(rr)), v_(v), a_(a) {}
  virtual ~Steps() = default;

  virtual Failures step(const Mask& live) = 0;
  virtual void settle() {}                             // x is what it should be after this
  virtual void restart(const Mask& mask) = 0;          // r and rr were replaced: forget directions
  virtual void recover(const Mask& mask) { restart(mask); }  // the same after a breakdown
  virtual void replaced(const Mask& mask) = 0;         // r and rr were made more exact: keep directions
  virtual void rescale(const Reals& factor) = 0;       // the unit of r; x and r are the caller's to scale
  virtual void take(const Columns& keep) = 0;

  FieldPtr x, r;
  Reals rr;

 protected:
  size_t n() const { return rr.size(); }
  void narrow(FieldPtr& field, const Columns& keep) {
    if (field) field = v_.take(*field, keep);
  }
  void take_common(const Columns& keep) {
    narrow(x, keep), narrow(r, keep);
    rr = pick(rr, keep);
    a_.release();
  }
  // The masked columns of `to` from `from`.
  void blend(const Mask& mask, const Field& from, FieldPtr& to) {
    if (all(mask)) to = v_.copy(from);
    else v_.put(*to, where(mask), *v_.take(from, where(mask)));
  }

  const Vectors& v_;
  Operator& a_;
};

// z = A^dagger r, p = z + b p, q = A p, alpha = |z|^2 / |q|^2, x += alpha p, r -= alpha q. The update of x waits until p is read
// for its own: 8 vectors read or written an iteration beside the operators.
class NormalSteps final : public Steps {
 public:
  NormalSteps(const Vectors& v, Operator& a, FieldPtr x0, FieldPtr r0, Reals rr0)
      : Steps(v, a, std::move(x0), std::move(r0), std::move(rr0)), zz_(n(), 0), keep_(n(), 0), waiting_(n(), 0), again_(n(), 0) {}

  Failures step(const Mask& live) override {
    if (!z_ || z_->n != r->n) z_.reset(), z_ = v_.make(r->n);
    Reals zz = a_.adjoint_norm2(*r, *z_);
    if (!p_) {
      p_ = std::move(z_), z_ = v_.make(r->n);
    } else {
      Reals beta(n());
      for (size_t k = 0; k < n(); ++k) beta[k] = ratio(zz[k], zz_[k], live[k]) * keep_[k];
      if (any(again_)) {
        settle();
        Complexes overlap = v_.inner(*z_, *p_);
        for (size_t k = 0; k < n(); ++k) overlap[k] = -ratio(overlap[k], std::complex<double>(zz[k]), again_[k]);
        v_.axpy(overlap, *z_, *p_);
      }
      v_.direction_update(waiting_, beta, *z_, *x, *p_);
    }
    zz_ = zz, keep_.assign(n(), 1), again_.assign(n(), 0);
    Field& q = *z_;
    const Reals qq = a_.apply_norm2(*p_, q);
    Failures failures{Mask(n()), Mask(n())};
    Complexes minus(n());
    for (size_t k = 0; k < n(); ++k) {
      const bool finite = std::isfinite(zz[k]) && std::isfinite(qq[k]);
      const bool broken = finite && (zz[k] == 0 || qq[k] == 0);  // r in the kernel of A^dagger, or p in that of A
      waiting_[k] = ratio(zz[k], qq[k], live[k] && finite && !broken);
      minus[k] = -waiting_[k];
      failures.not_finite[k] = !finite, failures.broken[k] = broken;
    }
    const Reals now = v_.axpy_norm2(minus, q, *r);
    for (size_t k = 0; k < n(); ++k)
      if (live[k] && !failures.not_finite[k]) rr[k] = now[k];
    pending_ = true;
    return failures;
  }

  void settle() override {
    if (!pending_) return;
    v_.axpy(complexes(waiting_), *p_, *x);
    waiting_.assign(n(), 0), pending_ = false;
  }

  void restart(const Mask& mask) override {
    for (size_t k = 0; k < n(); ++k)
      if (mask[k]) keep_[k] = 0;
  }

  void replaced(const Mask& mask) override {
    for (size_t k = 0; k < n(); ++k) again_[k] = again_[k] || mask[k];
  }

  void rescale(const Reals& factor) override {
    settle();
    if (p_) v_.scale(factor, *p_);
    for (size_t k = 0; k < n(); ++k) rr[k] *= factor[k] * factor[k], zz_[k] *= factor[k] * factor[k];
  }

  void take(const Columns& keep) override {
    settle();
    z_.reset();
    take_common(keep);
    narrow(p_, keep);
    zz_ = pick(zz_, keep), keep_ = pick(keep_, keep), waiting_ = pick(waiting_, keep), again_ = pick(again_, keep);
  }

 private:
  FieldPtr p_, z_;  // z_ holds A^dagger r, then A p
  Reals zz_, keep_, waiting_;
  Mask again_;
  bool pending_ = false;
};

// See lqcd_core.solvers.bicgstab for the letters. The next rho comes with the update of r.
class StabilisedSteps final : public Steps {
 public:
  StabilisedSteps(const Vectors& v, Operator& a, FieldPtr x0, FieldPtr r0, Reals rr0)
      : Steps(v, a, std::move(x0), std::move(r0), std::move(rr0)), shadow2_(rr), rho_(n(), 0), next_(n(), 0), factor_(n(), 0),
        omega_(n(), 0) {}

  Failures step(const Mask& live) override {
    const double epsilon = epsilon_of(v_.layout());
    if (!p_) {
      shadow_ = v_.copy(*r), p_ = v_.copy(*r);
      rho_ = complexes(rr);
    } else {
      const Complexes rho = known_ ? next_ : v_.inner(*shadow_, *r);
      Complexes beta(n());
      for (size_t k = 0; k < n(); ++k) beta[k] = ratio(rho[k], rho_[k], live[k]) * factor_[k];  // 0 restarts a column
      rho_ = rho;
      v_.bicg_direction(beta, omega_, *r, *ap_, *p_);
    }
    if (!ap_) ap_ = v_.make(r->n);
    if (!t_) t_ = v_.make(r->n);
    const auto [below, ap2] = a_.apply_dot(*p_, *ap_, *shadow_);
    Failures failures{Mask(n()), Mask(n())};
    Mask lost(n());
    Complexes alpha(n()), minus(n());
    for (size_t k = 0; k < n(); ++k) {
      const bool finite = std::isfinite(std::abs(below[k])) && std::isfinite(std::abs(rho_[k]));
      // |cos| of the angle between shadow and r (or A p) at rounding level: the quotient would be noise.
      lost[k] = std::norm(rho_[k]) <= epsilon * epsilon * shadow2_[k] * rr[k] ||
                std::norm(below[k]) <= epsilon * epsilon * shadow2_[k] * ap2[k];
      alpha[k] = ratio(rho_[k], below[k], live[k] && finite && !lost[k]);
      minus[k] = -alpha[k];
      failures.not_finite[k] = !finite;
    }
    const Reals ss = v_.axpy_norm2(minus, *ap_, *r);  // r is s from here
    const auto [st, tt] = a_.apply_dot(*r, *t_, *r);
    Complexes omega(n());
    for (size_t k = 0; k < n(); ++k) {
      const std::complex<double> ts = std::conj(st[k]);
      if (!std::isfinite(std::abs(ts)) || !std::isfinite(tt[k])) failures.not_finite[k] = 1;
      const bool still = ss[k] > 0;  // s = 0 is the exact solution: omega = 0 then
      omega[k] = ratio(ts, std::complex<double>(tt[k]), live[k] && !failures.not_finite[k] && still);
      lost[k] = lost[k] || (still && std::norm(ts) <= epsilon * epsilon * tt[k] * ss[k]);
    }
    const auto [rho, now] = v_.bicg_update(alpha, omega, *p_, *t_, *shadow_, *x, *r);
    next_ = rho, known_ = true;
    for (size_t k = 0; k < n(); ++k) {
      const bool finite = !failures.not_finite[k];
      if (live[k] && finite) rr[k] = now[k];
      factor_[k] = ratio(alpha[k], omega[k], live[k] && finite && !lost[k]);
      failures.broken[k] = finite && lost[k];
    }
    omega_ = omega;
    return failures;
  }

  void restart(const Mask& mask) override {
    known_ = false;
    if (!p_) return;
    blend(mask, *r, shadow_);
    for (size_t k = 0; k < n(); ++k)
      if (mask[k]) shadow2_[k] = rr[k], factor_[k] = 0;
  }

  // With shadow = r the same r^dagger A r = 0 would come again: lean the shadow towards A r.
  void recover(const Mask& mask) override {
    known_ = false;
    if (!p_) return;
    auto lean = v_.make(r->n);
    a_.apply(*r, *lean);
    const Reals size2 = v_.norm2(*lean);
    Complexes towards(n());
    for (size_t k = 0; k < n(); ++k) towards[k] = std::sqrt(ratio(rr[k], size2[k], mask[k] && std::isfinite(size2[k])));
    v_.xpay(*r, towards, *lean);
    blend(mask, *lean, shadow_);
    const Reals shadow2 = v_.norm2(*shadow_);
    for (size_t k = 0; k < n(); ++k)
      if (mask[k]) shadow2_[k] = shadow2[k], factor_[k] = 0;
  }

  void replaced(const Mask&) override { known_ = false; }  // p, A p and the shadow go on with the exact r

  void rescale(const Reals& factor) override {
    known_ = false;
    if (p_) v_.scale(factor, *p_);
    if (ap_) v_.scale(factor, *ap_);
    for (size_t k = 0; k < n(); ++k) rr[k] *= factor[k] * factor[k], rho_[k] *= factor[k];
  }

  void take(const Columns& keep) override {
    t_.reset();
    take_common(keep);
    narrow(shadow_, keep), narrow(p_, keep), narrow(ap_, keep);
    shadow2_ = pick(shadow2_, keep), rho_ = pick(rho_, keep), next_ = pick(next_, keep);
    factor_ = pick(factor_, keep), omega_ = pick(omega_, keep);
  }

 private:
  FieldPtr shadow_, p_, ap_, t_;
  Reals shadow2_;
  Complexes rho_, next_, factor_, omega_;  // factor: alpha / omega
  bool known_ = false;
};

std::unique_ptr<Steps> make_steps(Recurrence kind, const Vectors& v, Operator& a, FieldPtr x, FieldPtr r, Reals rr) {
  if (kind == Recurrence::cgnr) return std::make_unique<NormalSteps>(v, a, std::move(x), std::move(r), std::move(rr));
  return std::make_unique<StabilisedSteps>(v, a, std::move(x), std::move(r), std::move(rr));
}

// -- the problem in units of order one ---------------------------------------------------------------------------------

// A (x unit) = b unit, unit a power of two per column, and the true residual of some columns.
class Problem {
 public:
  Problem(const Vectors& v, Operator& a, const Field& b, Book& book) : v(v), a(a), b(b), book(book) {}

  // x and r of the start; columns that need no iteration are stopped in the book.
  void start(const Field* x0, FieldPtr& x, FieldPtr& r, Reals& rr) {
    const int n = b.n;
    const Reals b2 = v.norm2(b);
    norms.resize(n);
    for (int c = 0; c < n; ++c) norms[c] = std::sqrt(b2[c]);
    unit = power_of_two(norms, v.layout());
    bnorm.resize(n);
    Mask zero(n);
    for (int c = 0; c < n; ++c) {
      zero[c] = b2[c] == 0;
      if (zero[c]) book.truths[c] = 0, book.stop(c, Why::zero_source);
      if (!std::isfinite(b2[c])) book.stop(c, Why::not_finite);
      bnorm[c] = zero[c] ? 1.0 : norms[c] * unit[c];
    }
    r = v.copy(b);
    v.scale(unit, *r);
    rr.resize(n);
    if (!x0) {
      x = v.zeros(n);
      for (int c = 0; c < n; ++c) rr[c] = (norms[c] * unit[c]) * (norms[c] * unit[c]);
    } else {
      x = v.copy(*x0);
      Reals factor(unit);
      for (int c = 0; c < n; ++c)
        if (zero[c]) factor[c] = 0;
      v.scale(factor, *x);
      if (book.any_live()) {
        auto ax = v.make(n);
        a.apply(*x, *ax);
        v.axpy(Complexes(n, -1.0), *ax, *r);
      }
      rr = v.norm2(*r);
      for (int c : book.live()) {
        if (!std::isfinite(rr[c])) book.stop(c, Why::not_finite);
        else book.verified(c, std::sqrt(rr[c]) / bnorm[c]);
      }
    }
    for (int c = 0; c < n; ++c) book.residuals[c] = zero[c] ? 0.0 : std::sqrt(rr[c]) / bnorm[c];
  }

  // b - A x of the columns `at`, x holding just those, in units; norms squared too.
  FieldPtr defect(const Field& x, const Columns& at, Reals& norm2) {
    auto t = int(at.size()) == b.n ? v.copy(b) : v.take(b, at);
    v.scale(pick(unit, at), *t);
    auto ax = v.make(x.n);
    a.apply(x, *ax);
    v.axpy(Complexes(at.size(), -1.0), *ax, *t);
    norm2 = v.norm2(*t);
    return t;
  }

  // True residuals of columns that stopped without one, and x in the caller's units.
  void finish(Field& x) {
    Columns unknown;
    for (size_t c = 0; c < book.n(); ++c)
      if (!book.good(int(c))) unknown.push_back(int(c));
    for (size_t k = 0; k < unknown.size(); k += kCheckedTogether) {
      const Columns piece(unknown.begin() + k, unknown.begin() + std::min(unknown.size(), k + kCheckedTogether));
      Reals tt;
      defect(*v.take(x, piece), piece, tt);
      for (size_t j = 0; j < piece.size(); ++j) book.truths[piece[j]] = std::sqrt(tt[j]) / bnorm[piece[j]];
    }
    book.settle();
    Reals back;
    for (double u : unit) back.push_back(1.0 / u);
    v.scale(back, x);
  }

  const Vectors& v;
  Operator& a;
  const Field& b;
  Book& book;
  Reals norms, unit, bnorm;
};

// -- one precision -----------------------------------------------------------------------------------------------------

struct LoopLimits {
  int64_t maxiter, restarts, patience;
};

class Loop {
 public:
  Loop(Recurrence kind, const LoopLimits& limits, const Vectors& v, Operator& a, const Field& b, const Field* x0, Book& book)
      : limits_(limits), v_(v), a_(a), book_(book), problem_(v, a, b, book) {
    FieldPtr x, r;
    Reals rr;
    problem_.start(x0, x, r, rr);
    const size_t n = book.n();
    present_.resize(n);
    std::iota(present_.begin(), present_.end(), 0);
    last_true_.assign(n, INFINITY), restarts_.assign(n, 0), best_ = book.residuals, best_at_.assign(n, 0), broke_at_.assign(n, -2);
    steps_ = make_steps(kind, v, a, std::move(x), std::move(r), std::move(rr));
    compact();
  }

  FieldPtr run() {
    while (book_.any_live()) {
      if (int64_t(book_.history.size()) >= limits_.maxiter) {
        book_.stop_all(Why::maximum_iterations);
        break;
      }
      const Mask live = book_.live_among(present_);
      const Failures failures = steps_->step(live);
      account(live);
      judge(live, failures);
      compact();
    }
    steps_->settle();
    collect(Mask(present_.size(), 1));
    steps_.reset();
    a_.release();
    problem_.finish(*full_);
    return std::move(full_);
  }

 private:
  void account(const Mask& live) {
    Reals residuals = book_.residuals;
    for (size_t k = 0; k < present_.size(); ++k)
      if (live[k]) residuals[present_[k]] = std::sqrt(steps_->rr[k]) / problem_.bnorm[present_[k]];
    book_.record(residuals);
    for (size_t c = 0; c < book_.n(); ++c)
      if (book_.is_live(int(c)) && residuals[c] < 0.99 * best_[c]) best_[c] = residuals[c], best_at_[c] = int64_t(book_.history.size());
  }

  void judge(Mask live, const Failures& failures) {
    const int64_t now = int64_t(book_.history.size());
    Mask again(present_.size()), broken(present_.size());
    for (size_t k = 0; k < present_.size(); ++k) {
      const int c = present_[k];
      if (!live[k]) continue;
      if (failures.not_finite[k] || !std::isfinite(book_.residuals[c])) {
        book_.stop(c, Why::not_finite);
        continue;
      }
      const bool claims = book_.residuals[c] <= book_.targets[c];
      bool breaks = !claims && failures.broken[k];
      if (breaks && broke_at_[c] == now - 1) {  // a restart that breaks down in its first step meets the same zero again
        book_.stop(c, Why::breakdown);
        continue;
      }
      if (breaks) broke_at_[c] = now;
      const bool stalled = !claims && !breaks && now - best_at_[c] >= limits_.patience;
      again[k] = claims || breaks || stalled, broken[k] = breaks;
    }
    if (any(again)) renew(again, broken);
  }

  // True residual of these columns: converged, restarted from it, or stopped.
  void renew(const Mask& mask, const Mask& broken) {
    const Reals residuals = exact_residual(mask);
    const Columns places = where(mask);
    Mask restart(present_.size()), recover(present_.size());
    for (size_t j = 0; j < places.size(); ++j) {
      const int k = places[j], c = present_[k];
      const double now = residuals[j];
      if (!std::isfinite(now)) book_.stop(c, Why::not_finite);
      book_.verified(c, now);
      // A restart pays as long as each one lowers the true residual; a breakdown has lowered nothing and is new luck.
      if (!broken[k] && !(now < 0.5 * last_true_[c])) book_.stop(c, Why::stagnation);
      if (restarts_[c] >= limits_.restarts) book_.stop(c, broken[k] ? Why::breakdown : Why::stagnation);
      if (!broken[k]) last_true_[c] = now;
      ++restarts_[c];
      best_[c] = now, best_at_[c] = int64_t(book_.history.size());
      if (!book_.is_live(c)) continue;
      steps_->rr[k] = (now * problem_.bnorm[c]) * (now * problem_.bnorm[c]);
      (broken[k] ? recover : restart)[k] = 1;
    }
    if (any(restart)) steps_->restart(restart);
    if (any(recover)) steps_->recover(recover);
  }

  // |b - A x| / |b| of the masked columns, whose part of r becomes b - A x.
  Reals exact_residual(const Mask& mask) {
    steps_->settle();
    const Columns places = where(mask);
    Reals out;
    const bool whole = places.size() <= size_t(kCheckedTogether) && all(mask);
    for (size_t j = 0; j < places.size(); j += kCheckedTogether) {
      const Columns inside(places.begin() + j, places.begin() + std::min(places.size(), j + kCheckedTogether));
      const Columns at = pick(present_, inside);
      Reals tt;
      if (whole) {
        steps_->r = problem_.defect(*steps_->x, at, tt);
      } else {
        const auto t = problem_.defect(*v_.take(*steps_->x, inside), at, tt);
        v_.put(*steps_->r, inside, *t);
      }
      for (size_t i = 0; i < at.size(); ++i) out.push_back(std::sqrt(tt[i]) / problem_.bnorm[at[i]]);
    }
    return out;
  }

  // Finished columns leave the batch, their x goes into the full solution.
  void compact() {
    const Mask live = book_.live_among(present_);
    if (all(live) || !any(live)) return;
    Mask done(live);
    for (auto& d : done) d = !d;
    steps_->settle();
    collect(done);
    const Columns keep = where(live);
    steps_->take(keep);
    present_ = pick(present_, keep);
  }

  void collect(const Mask& mask) {
    if (!full_) {
      full_ = all(mask) ? std::move(steps_->x) : v_.copy(*steps_->x);
      return;
    }
    const Columns inside = where(mask);
    v_.put(*full_, pick(present_, inside), *v_.take(*steps_->x, inside));
  }

  LoopLimits limits_;
  const Vectors& v_;
  Operator& a_;
  Book& book_;
  Problem problem_;
  std::unique_ptr<Steps> steps_;
  Columns present_;
  FieldPtr full_;
  Reals last_true_, best_;
  std::vector<int64_t> restarts_, best_at_, broke_at_;
};

// -- two precisions ----------------------------------------------------------------------------------------------------

class Mixed {
 public:
  Mixed(const SolveParameters& parameters, const Vectors& v, Operator& a, const Vectors& w, Operator& inner, const Field& b,
        const Field* x0, Book& book)
      : p_(parameters), v_(v), a_(a), w_(w), inner_(inner), book_(book), problem_(v, a, b, book) {
    Reals rr;
    problem_.start(x0, x_, r_, rr);
    last_ = book.residuals, strikes_.assign(book.n(), 0), cycles_.assign(book.n(), 0);
  }

  FieldPtr run() {
    p_.mixing == Mixing::defect_correction ? defects() : reliable();
    inner_.release();
    r_.reset();
    problem_.finish(*x_);
    if (!counts_.empty()) book_.iterations = counts_;
    return std::move(x_);
  }

 private:
  // r = b - A x, a d = s r, x += d / s, again
  void defects() {
    Columns present(book_.n());
    std::iota(present.begin(), present.end(), 0);
    while (book_.any_live()) {
      const Columns columns = book_.live();
      if (columns.size() < present.size()) {
        Columns inside;
        for (size_t k = 0; k < present.size(); ++k)
          if (book_.is_live(present[k])) inside.push_back(int(k));
        r_ = v_.take(*r_, inside), present = columns;
      }
      if (counts_.empty()) counts_.assign(book_.n(), 0);
      const Reals relative = pick(book_.residuals, present);
      const Reals scale = scale_of(relative, present);
      v_.scale(scale, *r_);
      auto r = w_.convert(*r_);
      r_.reset();
      Reals targets;
      for (size_t k = 0; k < present.size(); ++k)
        targets.push_back(std::min(0.5, std::max(p_.inner_tol, 0.5 * book_.targets[present[k]] / std::max(relative[k], 1e-300))));
      const int64_t left = std::max<int64_t>(1, p_.maxiter - int64_t(book_.history.size()));
      Book part(targets, [&](int64_t, const Reals& now) {  // in units of |b|, for all columns
        Reals residuals = book_.residuals;
        for (size_t k = 0; k < present.size(); ++k) residuals[present[k]] = now[k] * relative[k];
        book_.record(residuals);
      });
      FieldPtr d;
      {
        Loop loop(p_.recurrence, {std::min(left, p_.inner_maxiter), p_.restarts, p_.patience}, w_, inner_, *r, nullptr, part);
        d = loop.run();
      }
      r.reset();
      auto correction = v_.convert(*d);
      d.reset();
      r_ = add_and_renew(columns, std::move(correction), scale);
      for (size_t k = 0; k < present.size(); ++k) counts_[present[k]] += part.iterations[k];
      judge(columns, &part.reasons);
    }
  }

  // One inner recurrence; x += y / s, y = 0, r = s (b - A x) whenever its residual has fallen by delta.
  void reliable() {
    if (!book_.any_live()) return;
    const size_t n = book_.n();
    Columns present(n);
    std::iota(present.begin(), present.end(), 0);
    Reals scale = scale_of(book_.residuals, present);
    for (size_t c = 0; c < n; ++c)
      if (!book_.is_live(int(c))) scale[c] = 1;
    v_.scale(scale, *r_);
    auto r = w_.convert(*r_);
    r_.reset();
    Reals rr = w_.norm2(*r);
    auto steps = make_steps(p_.recurrence, w_, inner_, w_.zeros(int(n)), std::move(r), std::move(rr));
    Reals peak = book_.residuals;  // largest since the last update
    narrow(*steps, present);
    while (book_.any_live()) {
      Mask live = book_.live_among(present);
      const Failures failures = steps->step(live);
      Reals residuals = book_.residuals;
      for (size_t k = 0; k < present.size(); ++k)
        if (live[k]) residuals[present[k]] = std::sqrt(steps->rr[k]) / (scale[present[k]] * problem_.bnorm[present[k]]);
      book_.record(residuals);
      Mask due(present.size()), broken(present.size());
      const bool end = int64_t(book_.history.size()) >= p_.maxiter;
      for (size_t k = 0; k < present.size(); ++k) {
        const int c = present[k];
        if (!live[k]) continue;
        if (failures.not_finite[k] || !std::isfinite(residuals[c])) {
          book_.stop(c, Why::not_finite);
          continue;
        }
        peak[c] = std::fmax(peak[c], residuals[c]);
        broken[k] = failures.broken[k];
        due[k] = end || broken[k] || residuals[c] <= std::max(p_.delta * peak[c], book_.targets[c]);
      }
      if (any(due)) update(*steps, present, due, broken, scale, peak);
      else if (end) book_.stop_all(Why::maximum_iterations);
      narrow(*steps, present);
    }
  }

  void update(Steps& steps, const Columns& present, const Mask& due, const Mask& broken, Reals& scale, Reals& peak) {
    const Columns inside = where(due), columns = pick(present, inside);
    steps.settle();
    const bool everyone = inside.size() == present.size();
    auto y = v_.convert(everyone ? *steps.x : *w_.take(*steps.x, inside));
    const Reals before = pick(last_, columns);
    auto t = add_and_renew(columns, std::move(y), pick(scale, columns));
    std::vector<Why> reasons;
    for (int k : inside) reasons.push_back(broken[k] ? Why::breakdown : Why::live);
    judge(columns, &reasons);
    // The next unit of r, and its directions with it.
    Reals factor(present.size(), 1.0);
    const Reals fresh_scale = scale_of(pick(book_.residuals, columns), columns);
    for (size_t j = 0; j < columns.size(); ++j) {
      peak[columns[j]] = book_.residuals[columns[j]];
      factor[inside[j]] = fresh_scale[j] / scale[columns[j]];
      scale[columns[j]] = fresh_scale[j];
    }
    Reals keep(present.size(), 1.0);
    for (int k : inside) keep[k] = 0;
    w_.scale(keep, *steps.x);
    v_.scale(pick(scale, columns), *t);
    auto r = w_.convert(*t);
    t.reset();
    if (everyone) steps.r = std::move(r);
    else w_.put(*steps.r, inside, *r);
    r.reset();
    steps.rescale(factor);
    const Reals now = w_.norm2(*steps.r);
    Mask fresh(present.size()), kept(present.size()), lost(present.size());
    for (size_t j = 0; j < inside.size(); ++j) {
      const int k = inside[j];
      steps.rr[k] = now[k];
      lost[k] = broken[k];
      // A residual that jumped up makes the old directions worthless.
      fresh[k] = !broken[k] && !(book_.residuals[columns[j]] <= before[j]);
      kept[k] = !broken[k] && !fresh[k];
    }
    if (any(fresh)) steps.restart(fresh);
    if (any(lost)) steps.recover(lost);
    if (any(kept)) steps.replaced(kept);
  }

  Reals scale_of(const Reals& relative, const Columns& columns) const {
    Reals sizes;
    for (size_t k = 0; k < columns.size(); ++k) sizes.push_back(relative[k] * problem_.bnorm[columns[k]]);
    return power_of_two(sizes, w_.layout());
  }

  // x += d / scale on these columns; r = b - A x of them, and their true residuals in the book.
  FieldPtr add_and_renew(const Columns& columns, FieldPtr d, const Reals& scale) {
    Complexes back;
    for (double s : scale) back.push_back(1.0 / s);
    const bool everything = columns.size() == book_.n();
    FieldPtr part = everything ? nullptr : v_.take(*x_, columns);
    Field& x = everything ? *x_ : *part;
    v_.axpy(back, *d, x);
    d.reset();
    Reals tt;
    auto t = problem_.defect(x, columns, tt);
    a_.release();
    if (part) v_.put(*x_, columns, *part);
    for (size_t k = 0; k < columns.size(); ++k) book_.residuals[columns[k]] = std::sqrt(tt[k]) / problem_.bnorm[columns[k]];
    return t;
  }

  // Converged, or a strike for a cycle that did not lower the true residual by a tenth; two end the column.
  void judge(const Columns& columns, const std::vector<Why>* inner_reasons) {
    for (size_t k = 0; k < columns.size(); ++k) {
      const int c = columns[k];
      const double now = book_.residuals[c];
      if (!std::isfinite(now)) book_.stop(c, Why::not_finite);
      book_.verified(c, now);
      strikes_[c] = now <= 0.9 * last_[c] ? 0 : strikes_[c] + 1;
      ++cycles_[c];
      last_[c] = now;
      if (strikes_[c] >= 2) {
        const Why why = inner_reasons ? (*inner_reasons)[k] : Why::live;
        const bool fatal = why == Why::not_positive || why == Why::breakdown || why == Why::not_finite;
        book_.stop(c, fatal ? why : Why::stagnation);
      } else if (cycles_[c] >= p_.cycles) {
        book_.stop(c, Why::stagnation);
      }
    }
    if (int64_t(book_.history.size()) >= p_.maxiter) book_.stop_all(Why::maximum_iterations);
  }

  void narrow(Steps& steps, Columns& present) {
    const Mask live = book_.live_among(present);
    if (all(live) || !any(live)) return;
    const Columns keep = where(live);
    steps.take(keep);
    present = pick(present, keep);
  }

  const SolveParameters& p_;
  const Vectors& v_;
  Operator& a_;
  const Vectors& w_;
  Operator& inner_;
  Book& book_;
  Problem problem_;
  FieldPtr x_, r_;
  Reals last_;
  std::vector<int64_t> strikes_, cycles_, counts_;
};

}  // namespace

const char* name_of(Why why) {
  switch (why) {
    case Why::converged: return "CONVERGED";
    case Why::zero_source: return "ZERO_SOURCE";
    case Why::maximum_iterations: return "MAXIMUM_ITERATIONS";
    case Why::breakdown: return "BREAKDOWN";
    case Why::not_finite: return "NOT_FINITE";
    case Why::not_positive: return "NOT_POSITIVE";
    default: return "STAGNATION";
  }
}

SolveAnswer solve(const System& outer, const System* inner, const SolveParameters& parameters, const Field& b, const Field* x0,
                  const Watch& watch) {
  SolveAnswer answer;
  Book book(parameters.targets, watch);
  const Vectors v(outer);
  Operator a(outer, v);
  if (parameters.mixing == Mixing::none) {
    Loop loop(parameters.recurrence, {parameters.maxiter, parameters.restarts, parameters.patience}, v, a, b, x0, book);
    answer.x = loop.run();
    answer.applications = a.applications;
  } else {
    const Vectors w(*inner);
    Operator small(*inner, w);
    Mixed mixed(parameters, v, a, w, small, b, x0, book);
    answer.x = mixed.run();
    answer.applications = small.applications, answer.outer_applications = a.applications;
  }
  answer.reasons = std::move(book.reasons);
  answer.iterations = std::move(book.iterations);
  answer.history = std::move(book.history);
  return answer;
}

}  // namespace lqcd_native
