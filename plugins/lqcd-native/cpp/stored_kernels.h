// Vector operations on every storage; part of kernels.cpp, inside its unnamed namespace.
//
// Packed storage runs the kernels of its arithmetic on a few sites at a time.

constexpr int kChunk = 8;

template <class S>
struct Chunk {
  VectorOf<S> data[24 * kChunk];
  INLINE void load(const void* x, int64_t first, int64_t nv) {
    for (int64_t s = 0; s < nv; ++s) load_site<S>(x, first + s, data + 24 * s);
  }
  INLINE void save(void* x, int64_t first, int64_t nv) const {
    for (int64_t s = 0; s < nv; ++s) store_site<S>(x, first + s, data + 24 * s, false);
  }
};

template <class F>
INLINE void chunks(int64_t nv, F&& f) {
  for (int64_t first = 0; first < nv; first += kChunk) f(first, nv - first < kChunk ? nv - first : kChunk);
}

// Sums of `parts` numbers a lane over chunks.
template <class S, int PARTS, class F>
INLINE void summed_chunks(int64_t nv, double* sums, F&& f) {
  constexpr int count = PARTS * Lanes<typename S::R>::n;
  for (int k = 0; k < count; ++k) sums[k] = 0;
  chunks(nv, [&](int64_t first, int64_t n) {
    double part[count];
    f(first, n, part);
    for (int k = 0; k < count; ++k) sums[k] += part[k];
  });
}

// The operations of Ops on the storage S; those of R for what is not packed.
template <class S>
struct Stored {
  using R = typename S::R;

  static void diagonal(const DiagonalArgs& d, const void* x, void* y, int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      VectorOf<S> in[24], out[24];
      load_site<S>(x, s, in);
      diagonal_site<R>(d, s, in, out);
      store_site<S>(y, s, out, false);
    }
  }
  static void axpy(int64_t nv, const void* a, bool real, const void* x, void* y) {
    if constexpr (!S::packed) return ::axpy<R>(nv, a, real, x, y);
    Chunk<S> cx, cy;
    chunks(nv, [&](int64_t f, int64_t n) { cx.load(x, f, n), cy.load(y, f, n), ::axpy<R>(n, a, real, cx.data, cy.data), cy.save(y, f, n); });
  }
  static void xpay(int64_t nv, const void* a, bool real, const void* x, void* y) {
    if constexpr (!S::packed) return ::xpay<R>(nv, a, real, x, y);
    Chunk<S> cx, cy;
    chunks(nv, [&](int64_t f, int64_t n) { cx.load(x, f, n), cy.load(y, f, n), ::xpay<R>(n, a, real, cx.data, cy.data), cy.save(y, f, n); });
  }
  static void scale(int64_t nv, const void* a, bool real, void* x) {
    if constexpr (!S::packed) return ::scale<R>(nv, a, real, x);
    Chunk<S> cx;
    chunks(nv, [&](int64_t f, int64_t n) { cx.load(x, f, n), ::scale<R>(n, a, real, cx.data), cx.save(x, f, n); });
  }
  static void gamma5(int64_t nv, const void* x, void* y) {
    if constexpr (!S::packed) return ::gamma5<R>(nv, x, y);
    Chunk<S> cx, cy;
    chunks(nv, [&](int64_t f, int64_t n) { cx.load(x, f, n), ::gamma5<R>(n, cx.data, cy.data), cy.save(y, f, n); });
  }
  static void dot(int64_t nv, const void* x, const void* y, double* sums) {
    if constexpr (!S::packed) return ::dot<R>(nv, x, y, sums);
    Chunk<S> cx, cy;
    summed_chunks<S, 2>(nv, sums, [&](int64_t f, int64_t n, double* part) { cx.load(x, f, n), cy.load(y, f, n), ::dot<R>(n, cx.data, cy.data, part); });
  }
  static void norm2(int64_t nv, const void* x, double* sums) {
    if constexpr (!S::packed) return ::norm2<R>(nv, x, sums);
    Chunk<S> cx;
    summed_chunks<S, 1>(nv, sums, [&](int64_t f, int64_t n, double* part) { cx.load(x, f, n), ::norm2<R>(n, cx.data, part); });
  }
  // The norm is that of what was stored.
  static void axpy_norm2(int64_t nv, const void* a, bool real, const void* x, void* y, double* sums) {
    if constexpr (!S::packed) return ::axpy_norm2<R>(nv, a, real, x, y, sums);
    Chunk<S> cx, cy;
    summed_chunks<S, 1>(nv, sums, [&](int64_t f, int64_t n, double* part) {
      cx.load(x, f, n), cy.load(y, f, n), ::axpy<R>(n, a, real, cx.data, cy.data), cy.save(y, f, n);
      cy.load(y, f, n), ::norm2<R>(n, cy.data, part);
    });
  }
  static void cg_update(int64_t nv, const void* a, bool real, const void* p, const void* ap, void* x, void* r, double* sums) {
    if constexpr (!S::packed) return ::cg_update<R>(nv, a, real, p, ap, x, r, sums);
    Chunk<S> cp, ca, cx, cr;
    summed_chunks<S, 1>(nv, sums, [&](int64_t f, int64_t n, double* part) {
      cp.load(p, f, n), ca.load(ap, f, n), cx.load(x, f, n), cr.load(r, f, n);
      ::cg_update<R>(n, a, real, cp.data, ca.data, cx.data, cr.data, part);
      cx.save(x, f, n), cr.save(r, f, n), cr.load(r, f, n), ::norm2<R>(n, cr.data, part);
    });
  }
  static void direction_update(int64_t nv, const void* a, const void* b, const void* z, void* x, void* p) {
    if constexpr (!S::packed) return ::direction_update<R>(nv, a, b, z, x, p);
    Chunk<S> cz, cx, cp;
    chunks(nv, [&](int64_t f, int64_t n) {
      cz.load(z, f, n), cx.load(x, f, n), cp.load(p, f, n);
      ::direction_update<R>(n, a, b, cz.data, cx.data, cp.data), cx.save(x, f, n), cp.save(p, f, n);
    });
  }
  static void bicg_direction(int64_t nv, const void* b, const void* w, const void* r, const void* v, void* p) {
    if constexpr (!S::packed) return ::bicg_direction<R>(nv, b, w, r, v, p);
    Chunk<S> cr, cv, cp;
    chunks(nv, [&](int64_t f, int64_t n) {
      cr.load(r, f, n), cv.load(v, f, n), cp.load(p, f, n);
      ::bicg_direction<R>(n, b, w, cr.data, cv.data, cp.data), cp.save(p, f, n);
    });
  }
  static void bicg_update(int64_t nv, const void* a, const void* w, const void* p, const void* t, const void* shadow, void* x,
                          void* r, double* sums) {
    if constexpr (!S::packed) return ::bicg_update<R>(nv, a, w, p, t, shadow, x, r, sums);
    Chunk<S> cp, ct, ch, cx, cr;
    summed_chunks<S, 3>(nv, sums, [&](int64_t f, int64_t n, double* part) {
      cp.load(p, f, n), ct.load(t, f, n), ch.load(shadow, f, n), cx.load(x, f, n), cr.load(r, f, n);
      ::bicg_update<R>(n, a, w, cp.data, ct.data, ch.data, cx.data, cr.data, part);
      cx.save(x, f, n), cr.save(r, f, n);
    });
  }
};
