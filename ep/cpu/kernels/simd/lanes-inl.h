// What compilers make of vectors by themselves, alike for every instruction set. Included by the headers of these, inside their
// namespace, once kLanes is known.

typedef float V __attribute__((vector_size(4 * kLanes)));
typedef uint32_t I __attribute__((vector_size(4 * kLanes)));  // of int32: unsigned, so that sums wrap
typedef int32_t M __attribute__((vector_size(4 * kLanes)));   // each lane all ones or all zeros
typedef int8_t Bytes __attribute__((vector_size(4 * kLanes)));
typedef uint64_t Longs __attribute__((vector_size(4 * kLanes)));

NORMFUSE_INLINE V Set(float x) { return x - V{}; }  // not +, which makes 0 of -0
NORMFUSE_INLINE I SetI(int32_t x) { return static_cast<uint32_t>(x) + I{}; }
NORMFUSE_INLINE Bytes SetBytes(int8_t x) { return x + Bytes{}; }

template <class Vector>
NORMFUSE_INLINE Vector LoadBits(const void* p) {
  Vector a;
  __builtin_memcpy(&a, p, sizeof(a));
  return a;
}
alignas(64) constexpr uint32_t kLaneNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
NORMFUSE_INLINE I Iota() { return LoadBits<I>(kLaneNumbers); }
NORMFUSE_INLINE V Load(const float* p) { return LoadBits<V>(p); }
NORMFUSE_INLINE void Store(float* p, V a) { __builtin_memcpy(p, &a, sizeof(a)); }

NORMFUSE_INLINE I BitCastToInt(V a) { return (I)a; }
NORMFUSE_INLINE V BitCastToFloat(I a) { return (V)a; }
NORMFUSE_INLINE V ToFloat(I a) { return __builtin_convertvector((M)a, V); }
NORMFUSE_INLINE V ToFloatUnsigned(I a) { return __builtin_convertvector(a, V); }

NORMFUSE_INLINE M Lt(V a, V b) { return a < b; }
NORMFUSE_INLINE M Gt(V a, V b) { return a > b; }
NORMFUSE_INLINE M Eq(V a, V b) { return a == b; }
NORMFUSE_INLINE M IsNan(V a) { return a != a; }  // NOLINT(misc-redundant-expression)
NORMFUSE_INLINE M GtI(I a, I b) { return (M)a > (M)b; }
NORMFUSE_INLINE V Select(M m, V a, V b) { return m ? a : b; }
NORMFUSE_INLINE I SelectI(M m, I a, I b) { return m ? a : b; }

NORMFUSE_INLINE V Neg(V a) { return -a; }
NORMFUSE_INLINE V Abs(V a) { return (V)((I)a & SetI(INT32_MAX)); }
NORMFUSE_INLINE V CopySign(V magnitude, V sign) {
  return (V)(((I)magnitude & SetI(INT32_MAX)) | ((I)sign & SetI(INT32_MIN)));
}
template <int kBits>
NORMFUSE_INLINE I ShiftLeft(I a) {
  return a << kBits;
}
template <int kBits>
NORMFUSE_INLINE I ShiftRight(I a) {
  return (I)((M)a >> kBits);
}
