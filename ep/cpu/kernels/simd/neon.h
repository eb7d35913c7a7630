// The vector layer on aarch64 NEON: 4 lanes. See simd.h for the meaning of each name.
#pragma once

#include <arm_neon.h>

#include "cpu/kernels/simd/types.h"

namespace normfuse::NORMFUSE_ISA {

constexpr size_t kLanes = 4;
constexpr bool kHasFma = true;
constexpr bool kHasTables = false;
constexpr bool kHasScale = false;
constexpr bool kHasLookup8 = false;
constexpr bool kStreams = false;  // non-temporal stores gain nothing here
constexpr bool kStoresFour = false;

#include "cpu/kernels/simd/lanes-inl.h"

// Float arithmetic.
NORMFUSE_INLINE V Fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
NORMFUSE_INLINE V NegFma(V a, V b, V c) { return vfmsq_f32(c, a, b); }
// FMIN and FMAX give NaN where either operand is one; the layer promises the second operand.
NORMFUSE_INLINE V Min(V a, V b) { return Select(Lt(a, b), a, b); }
NORMFUSE_INLINE V Max(V a, V b) { return Select(Gt(a, b), a, b); }
NORMFUSE_INLINE V RoundEven(V a) { return vrndnq_f32(a); }
NORMFUSE_INLINE I ToInt(V a) { return (I)vcvtnq_s32_f32(a); }
NORMFUSE_INLINE bool Any(M a) { return vmaxvq_u32((I)a) != 0; }

// Reductions.
NORMFUSE_INLINE float ReduceSum(V a) { return vaddvq_f32(a); }
NORMFUSE_INLINE float ReduceMax(V a) { return vmaxvq_f32(a); }
NORMFUSE_INLINE Floats SumsOfEach(V a, V b, V c, V d) { return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)); }

// Loads.
NORMFUSE_INLINE uint8x8_t Load32(const void* p) {
  uint32_t bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return vreinterpret_u8_u32(vdup_n_u32(bits));
}
NORMFUSE_INLINE V LoadAs(const Half* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
}
NORMFUSE_INLINE I LoadAs(const int8_t* p) {
  return (I)vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(Load32(p)))));
}
NORMFUSE_INLINE I LoadAs(const uint8_t* p) { return vmovl_u16(vget_low_u16(vmovl_u8(Load32(p)))); }
NORMFUSE_INLINE I LoadAs(const int16_t* p) { return (I)vmovl_s16(vld1_s16(p)); }
NORMFUSE_INLINE I LoadAs(const uint16_t* p) { return vmovl_u16(vld1_u16(p)); }

// Stores.
NORMFUSE_INLINE void Store32(void* p, uint8x8_t a) {
  const uint32_t bits = vget_lane_u32(vreinterpret_u32_u8(a), 0);
  __builtin_memcpy(p, &bits, sizeof(bits));
}
NORMFUSE_INLINE void StoreAs(Half* p, V a) {
  vst1_u16(reinterpret_cast<uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(a)));
}
NORMFUSE_INLINE void StoreAs(int8_t* p, I a) {
  const int16x4_t words = vqmovn_s32((M)a);
  Store32(p, vreinterpret_u8_s8(vqmovn_s16(vcombine_s16(words, words))));
}
NORMFUSE_INLINE void StoreAs(uint8_t* p, I a) {
  const int16x4_t words = vqmovn_s32((M)a);
  Store32(p, vqmovun_s16(vcombine_s16(words, words)));
}
NORMFUSE_INLINE void StoreAs(int16_t* p, I a) { vst1_s16(p, vqmovn_s32((M)a)); }
NORMFUSE_INLINE void StoreAs(uint16_t* p, I a) { vst1_u16(p, vqmovun_s32((M)a)); }

}  // namespace normfuse::NORMFUSE_ISA
