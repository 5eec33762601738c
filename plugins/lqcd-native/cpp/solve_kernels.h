// Vector updates that only whole solves use; part of kernels.cpp, inside its unnamed namespace.
//
// Vectors read and written per element: direction 3 + 2, bicg_direction 3 + 1, bicg_update 5 + 2.

// x += a p, p = z + b p, a and b real: the update of x waits until p is read anyway.
template <class R>
void direction_update(int64_t nv, const void* a, const void* b, const void* z, void* x, void* p) {
  using V = typename Lanes<R>::V;
  const V alpha = static_cast<const V*>(a)[0], beta = static_cast<const V*>(b)[0];
  const V* zv = static_cast<const V*>(z);
  V *xv = static_cast<V*>(x), *pv = static_cast<V*>(p);
  for (int64_t k = 0; k < 24 * nv; ++k) {
    const V old = pv[k];
    xv[k] += alpha * old;
    pv[k] = zv[k] + beta * old;
  }
}

// p = r + b (p - w v)
template <class R>
void bicg_direction(int64_t nv, const void* b, const void* w, const void* r, const void* v, void* p) {
  using V = typename Lanes<R>::V;
  const Scalar<R> beta(b), omega(w);
  const V *rv = static_cast<const V*>(r), *vv = static_cast<const V*>(v);
  V* pv = static_cast<V*>(p);
  for (int64_t k = 0; k < 24 * nv; k += 2) {
    V dr = pv[k], di = pv[k + 1];
    add_scaled<false, R>(omega, -vv[k], -vv[k + 1], dr, di);
    V pr = rv[k], pi = rv[k + 1];
    add_scaled<false, R>(beta, dr, di, pr, pi);
    pv[k] = pr, pv[k + 1] = pi;
  }
}

// x += a p + w s, r = s - w t (s is what r holds); sums: re and im of shadow^dagger r, |r|^2.
template <class R>
void bicg_update(int64_t nv, const void* a, const void* w, const void* p, const void* t, const void* shadow, void* x, void* r,
                 double* sums) {
  using V = typename Lanes<R>::V;
  const Scalar<R> alpha(a), omega(w);
  const V *pv = static_cast<const V*>(p), *tv = static_cast<const V*>(t), *hv = static_cast<const V*>(shadow);
  V *xv = static_cast<V*>(x), *rv = static_cast<V*>(r);
  Wide<R> c[6];
  for (auto& sum : c) sum = Wide<R>::zero();
  for (int64_t k = 0; k < 24 * nv; k += 2) {
    V xr = xv[k], xi = xv[k + 1], rr = rv[k], ri = rv[k + 1];
    add_scaled<false, R>(alpha, pv[k], pv[k + 1], xr, xi);
    add_scaled<false, R>(omega, rr, ri, xr, xi);
    add_scaled<false, R>(omega, -tv[k], -tv[k + 1], rr, ri);
    xv[k] = xr, xv[k + 1] = xi, rv[k] = rr, rv[k + 1] = ri;
    const Wide<R> wr = widen(rr), wi = widen(ri), hr = widen(hv[k]), hi = widen(hv[k + 1]);
    c[0].add_product(hr, wr), c[1].add_product(hi, wi), c[2].add_product(hr, wi), c[3].add_product(hi, wr);
    c[4].add_product(wr, wr), c[5].add_product(wi, wi);
  }
  (c[0] + c[1]).write(sums);
  (c[2] - c[3]).write(sums + Lanes<R>::n);
  (c[4] + c[5]).write(sums + 2 * Lanes<R>::n);
}
