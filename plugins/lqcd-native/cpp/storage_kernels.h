// How numbers are stored, and what arithmetic runs on them; part of kernels.cpp, inside its unnamed namespace.
//
//   F64, F32  as they are
//   F16, B16  IEEE half and bfloat16, two bytes; arithmetic in float
//   Q16       fixed point: q / 32767 times a scale, q a 16-bit integer. A spinor has one scale a site (the largest |component|,
//             a float behind its 24 numbers), so that storing what was read changes nothing. Links share one scale a bind.
//
// Everything rounds to nearest even. A site of a spinor takes `site` bytes times lanes.

struct F64 {
  using R = double;
  static constexpr bool packed = false, scaled = false;
  static constexpr int number = 8, site = 192;
};
struct F32 {
  using R = float;
  static constexpr bool packed = false, scaled = false;
  static constexpr int number = 4, site = 96;
};
struct F16 {
  using R = float;
  static constexpr bool packed = true, scaled = false;
  static constexpr int number = 2, site = 48;
};
struct B16 {
  using R = float;
  static constexpr bool packed = true, scaled = false;
  static constexpr int number = 2, site = 48;
};
struct Q16 {
  using R = float;
  static constexpr bool packed = true, scaled = true;
  static constexpr int number = 2, site = 52;
};

template <class S>
using VectorOf = typename Lanes<typename S::R>::V;
using Floats = Lanes<float>::V;
constexpr int kFloats = Lanes<float>::n;
typedef int32_t Ints __attribute__((vector_size(LQCD_BYTES)));
constexpr float kQuantum = 1.0f / 32767.0f;

// -- sixteen bits, one vector at a time ----------------------------------------------------------------------------------

// A vector of 16-bit numbers in the low halves of 32-bit lanes, and back; the upper halves must be zero.
INLINE Ints widen16(const uint16_t* p) {
#if LQCD_BYTES == 64
  return (Ints)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif LQCD_BYTES == 32
  return (Ints)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__SSE4_1__)
  return (Ints)_mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  return (Ints)vmovl_u16(vld1_u16(p));
#else
  return Ints{p[0], p[1], p[2], p[3]};
#endif
}

INLINE void narrow16(Ints v, uint16_t* p) {
#if LQCD_BYTES == 64
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16((__m512i)v));
#elif LQCD_BYTES == 32
  const __m256i both = _mm256_packus_epi32((__m256i)v, (__m256i)v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(_mm256_permute4x64_epi64(both, 0x08)));
#elif defined(__SSE4_1__)
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi32((__m128i)v, (__m128i)v));
#elif defined(__aarch64__)
  vst1_u16(p, vmovn_u32((uint32x4_t)v));
#else
  for (int k = 0; k < 4; ++k) p[k] = static_cast<uint16_t>(v[k]);
#endif
}

INLINE Ints choose(Ints mask, Ints yes, Ints no) { return (mask & yes) | (~mask & no); }
INLINE Ints magnitude(Floats v) { return (Ints)v & 0x7fffffff; }

template <class S>
INLINE Floats decode_number(const uint16_t* p);
template <class S>
INLINE void encode_number(Floats v, uint16_t* p);

template <>
INLINE Floats decode_number<B16>(const uint16_t* p) {
  return (Floats)(widen16(p) << 16);
}

template <>
INLINE void encode_number<B16>(Floats v, uint16_t* p) {
  const Ints bits = (Ints)v;
  const Ints rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const Ints kept = choose((Ints)(v != v), bits | 0x00400000, rounded);  // a NaN stays one
  narrow16((kept >> 16) & 0xffff, p);
}

template <>
INLINE Floats decode_number<F16>(const uint16_t* p) {
#if LQCD_BYTES == 64
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif LQCD_BYTES == 32
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
  const Ints h = widen16(p), exponent = h & 0x7c00;
  // Exponent and fraction in place, then times 2^112: right for normal and subnormal numbers alike.
  const Ints scaled = (Ints)((Floats)((h & 0x7fff) << 13) * 0x1p112f);
  return (Floats)(choose((Ints)(exponent == 0x7c00), scaled | 0x7f800000, scaled) | ((h & 0x8000) << 16));
#endif
}

template <>
INLINE void encode_number<F16>(Floats v, uint16_t* p) {
#if LQCD_BYTES == 64
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif LQCD_BYTES == 32
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
#else
  const Ints a = magnitude(v), sign = ((Ints)v >> 16) & 0x8000;
  const Ints normal = (a - (112 << 23) + 0xfff + ((a >> 13) & 1)) >> 13;
  const Ints small = (Ints)((Floats)a + 0.5f) - 0x3f000000;  // the sum rounds to a multiple of 2^-24
  const Ints finite = choose((Ints)(a < (113 << 23)), small, normal);
  const Ints large = choose((Ints)(a > 0x7f800000), Ints{} + 0x7e00, Ints{} + 0x7c00);
  narrow16(choose((Ints)(a >= 0x477ff000), large, finite) | sign, p);
#endif
}

// Q16: whole numbers.
template <>
INLINE Floats decode_number<Q16>(const uint16_t* p) {
#if LQCD_BYTES == 64
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif LQCD_BYTES == 32
  return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  return __builtin_convertvector((widen16(p) << 16) >> 16, Floats);
#endif
}

template <>
INLINE void encode_number<Q16>(Floats v, uint16_t* p) {
  // The sum with 3 x 2^22 rounds to a whole number, which its last bits then show.
  narrow16(((Ints)(v + 12582912.0f) - 0x4b400000) & 0xffff, p);
}

// -- a site ------------------------------------------------------------------------------------------------------------

// What a kernel reads of a spinor: numbers, and for Q16 a factor that they all want (scale / 32767).
template <class S>
struct Site {
  const char* p;
  INLINE Site(const void* base, int64_t site) : p(static_cast<const char*>(base) + site * (S::site * Lanes<typename S::R>::n)) {}
  INLINE VectorOf<S> operator[](int k) const {
    if constexpr (S::packed) return decode_number<S>(reinterpret_cast<const uint16_t*>(p) + k * kFloats);
    else return reinterpret_cast<const VectorOf<S>*>(p)[k];
  }
  INLINE VectorOf<S> scale() const { return *reinterpret_cast<const VectorOf<S>*>(p + 48 * kFloats); }
};

// The 24 numbers of a site as they are meant.
template <class S>
INLINE void load_site(const void* base, int64_t site, VectorOf<S>* to) {
  const Site<S> from(base, site);
  if constexpr (S::scaled) {
    const Floats scale = from.scale();
    for (int k = 0; k < 24; ++k) to[k] = from[k] * kQuantum * scale;  // in this order 32767 gives the scale itself
  } else {
    for (int k = 0; k < 24; ++k) to[k] = from[k];
  }
}

template <class S>
INLINE void store_site(void* base, int64_t site, const VectorOf<S>* v, bool stream) {
  using V = VectorOf<S>;
  constexpr int n = Lanes<typename S::R>::n;
  char* to = static_cast<char*>(base) + site * (S::site * n);
  if constexpr (!S::packed) {
    V* out = reinterpret_cast<V*>(to);
    if (stream)
      for (int k = 0; k < 24; ++k) store(out + k, v[k], true);
    else
      for (int k = 0; k < 24; ++k) out[k] = v[k];
  } else {
    V line[(S::site * n + sizeof(V) - 1) / sizeof(V)];
    uint16_t* q = reinterpret_cast<uint16_t*>(line);
    if constexpr (S::scaled) {
      Ints most = {};
      for (int k = 0; k < 24; ++k) {
        const Ints m = magnitude(v[k]);  // as whole numbers they are in the order of the floats, NaN above all
        most = choose((Ints)(m > most), m, most);
      }
      const Ints lost = (Ints)(most >= 0x7f800000), none = (Ints)(most < 0x0da24260);  // below 1e-30 a site counts as zero
      const Floats scale = (Floats)choose(lost, Ints{} + 0x7fc00000, ~none & most);
      const Floats factor = (Floats)(~(lost | none) & (Ints)(32767.0f / (Floats)choose(lost | none, Ints{} + 0x3f800000, most)));
      for (int k = 0; k < 24; ++k) {
        const Floats number = (Floats)(~lost & (Ints)v[k]);
        encode_number<S>(number * factor, q + k * n);
      }
      line[12] = scale;
    } else {
      for (int k = 0; k < 24; ++k) encode_number<S>(v[k], q + k * n);
    }
    V* out = reinterpret_cast<V*>(to);
    for (int k = 0; k < int(S::site * n / sizeof(V)); ++k) store(out + k, line[k], stream);
  }
}

// -- between storage and arithmetic ------------------------------------------------------------------------------------

template <class S>
void decode(int64_t nv, const void* x, void* to) {
  auto* out = static_cast<VectorOf<S>*>(to);
  for (int64_t s = 0; s < nv; ++s) load_site<S>(x, s, out + 24 * s);
}

template <class S>
void encode(int64_t nv, const void* from, void* x) {
  const auto* in = static_cast<const VectorOf<S>*>(from);
  for (int64_t s = 0; s < nv; ++s) store_site<S>(x, s, in + 24 * s, false);
}

// `count` vectors without a scale (links); for Q16 the caller has divided by its quantum.
template <class S>
void encode_vectors(int64_t count, const void* from, void* to) {
  const auto* in = static_cast<const VectorOf<S>*>(from);
  for (int64_t k = 0; k < count; ++k) {
    if constexpr (S::packed) encode_number<S>(in[k], static_cast<uint16_t*>(to) + k * kFloats);
    else static_cast<VectorOf<S>*>(to)[k] = in[k];
  }
}
