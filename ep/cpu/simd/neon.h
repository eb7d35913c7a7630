// The vector layer on aarch64 NEON: 4 lanes. See simd.h for the meaning of each name.
#pragma once

#include <arm_neon.h>

#include "cpu/simd/types.h"

namespace normfuse::NORMFUSE_ISA {

constexpr size_t kLanes = 4;
constexpr bool kHasFma = true;
constexpr bool kHasTables = false;
constexpr bool kHasScale = false;
constexpr bool kHasLookup8 = false;
constexpr bool kHasByteShuffle = false;
struct Bytes;
constexpr bool kStreams = false;  // non-temporal stores gain nothing here
constexpr bool kStoresFour = false;

struct V {
  float32x4_t v;
};
struct I {
  int32x4_t v;
};
struct M {
  uint32x4_t m;  // each lane all ones or all zeros
};

NORMFUSE_INLINE V Set(float x) { return {vdupq_n_f32(x)}; }
NORMFUSE_INLINE I SetI(int32_t x) { return {vdupq_n_s32(x)}; }
NORMFUSE_INLINE I Iota() {
  const int32_t lanes[4] = {0, 1, 2, 3};
  return {vld1q_s32(lanes)};
}

// Bit patterns.
NORMFUSE_INLINE I BitCastToInt(V a) { return {vreinterpretq_s32_f32(a.v)}; }
NORMFUSE_INLINE V BitCastToFloat(I a) { return {vreinterpretq_f32_s32(a.v)}; }

// Comparison and choice.
NORMFUSE_INLINE M Lt(V a, V b) { return {vcltq_f32(a.v, b.v)}; }
NORMFUSE_INLINE M Gt(V a, V b) { return {vcgtq_f32(a.v, b.v)}; }
NORMFUSE_INLINE M Eq(V a, V b) { return {vceqq_f32(a.v, b.v)}; }
NORMFUSE_INLINE M IsNan(V a) { return {vmvnq_u32(vceqq_f32(a.v, a.v))}; }
NORMFUSE_INLINE M operator&(M a, M b) { return {vandq_u32(a.m, b.m)}; }
NORMFUSE_INLINE bool Any(M a) { return vmaxvq_u32(a.m) != 0; }
NORMFUSE_INLINE V Select(M m, V a, V b) { return {vbslq_f32(m.m, a.v, b.v)}; }

// Float arithmetic.
NORMFUSE_INLINE V operator+(V a, V b) { return {vaddq_f32(a.v, b.v)}; }
NORMFUSE_INLINE V operator-(V a, V b) { return {vsubq_f32(a.v, b.v)}; }
NORMFUSE_INLINE V operator*(V a, V b) { return {vmulq_f32(a.v, b.v)}; }
NORMFUSE_INLINE V operator/(V a, V b) { return {vdivq_f32(a.v, b.v)}; }
NORMFUSE_INLINE V Fma(V a, V b, V c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
NORMFUSE_INLINE V NegFma(V a, V b, V c) { return {vfmsq_f32(c.v, a.v, b.v)}; }
NORMFUSE_INLINE V ExactFma(V a, V b, V c) { return Fma(a, b, c); }
// FMIN and FMAX give NaN where either operand is one; the layer promises the second operand.
NORMFUSE_INLINE V Min(V a, V b) { return Select(Lt(a, b), a, b); }
NORMFUSE_INLINE V Max(V a, V b) { return Select(Gt(a, b), a, b); }
NORMFUSE_INLINE V Abs(V a) { return {vabsq_f32(a.v)}; }
NORMFUSE_INLINE V Neg(V a) { return {vnegq_f32(a.v)}; }
NORMFUSE_INLINE V RoundEven(V a) { return {vrndnq_f32(a.v)}; }
NORMFUSE_INLINE V CopySign(V magnitude, V sign) { return {vbslq_f32(vdupq_n_u32(0x80000000u), sign.v, magnitude.v)}; }

// Integer arithmetic.
NORMFUSE_INLINE I operator+(I a, I b) { return {vaddq_s32(a.v, b.v)}; }
NORMFUSE_INLINE I operator-(I a, I b) { return {vsubq_s32(a.v, b.v)}; }
NORMFUSE_INLINE I operator&(I a, I b) { return {vandq_s32(a.v, b.v)}; }
NORMFUSE_INLINE I operator|(I a, I b) { return {vorrq_s32(a.v, b.v)}; }
NORMFUSE_INLINE I operator^(I a, I b) { return {veorq_s32(a.v, b.v)}; }
template <int kBits>
NORMFUSE_INLINE I ShiftLeft(I a) {
  return {vshlq_n_s32(a.v, kBits)};
}
template <int kBits>
NORMFUSE_INLINE I ShiftRight(I a) {
  return {vshrq_n_s32(a.v, kBits)};
}
template <int kBits>
NORMFUSE_INLINE I ShiftRightLogical(I a) {
  return {vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.v), kBits))};
}
NORMFUSE_INLINE M GtI(I a, I b) { return {vcgtq_s32(a.v, b.v)}; }
NORMFUSE_INLINE I SelectI(M m, I a, I b) { return {vbslq_s32(m.m, a.v, b.v)}; }

// Conversions between float and int32.
NORMFUSE_INLINE I ToInt(V a) { return {vcvtnq_s32_f32(a.v)}; }
NORMFUSE_INLINE V ToFloat(I a) { return {vcvtq_f32_s32(a.v)}; }
NORMFUSE_INLINE V ToFloatUnsigned(I a) { return {vcvtq_f32_u32(vreinterpretq_u32_s32(a.v))}; }

// Reductions.
NORMFUSE_INLINE float ReduceSum(V a) { return vaddvq_f32(a.v); }
NORMFUSE_INLINE Floats SumsOfEach(V a, V b, V c, V d) {
  return reinterpret_cast<Floats>(vpaddq_f32(vpaddq_f32(a.v, b.v), vpaddq_f32(c.v, d.v)));
}
NORMFUSE_INLINE float ReduceMax(V a) { return vmaxvq_f32(a.v); }

// Loads.
NORMFUSE_INLINE V Load(const float* p) { return {vld1q_f32(p)}; }
NORMFUSE_INLINE uint8x8_t Load32(const void* p) {
  uint32_t bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return vreinterpret_u8_u32(vdup_n_u32(bits));
}
NORMFUSE_INLINE V LoadAs(const float* p) { return Load(p); }
NORMFUSE_INLINE V LoadAs(const Half* p) {
  return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))))};
}
NORMFUSE_INLINE V LoadAs(const Bfloat16* p) {
  return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16))};
}
NORMFUSE_INLINE I LoadAs(const int8_t* p) { return {vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(Load32(p)))))}; }
NORMFUSE_INLINE I LoadAs(const uint8_t* p) {
  return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(Load32(p)))))};
}
NORMFUSE_INLINE I LoadAs(const int16_t* p) { return {vmovl_s16(vld1_s16(p))}; }
NORMFUSE_INLINE I LoadAs(const uint16_t* p) { return {vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p)))}; }
NORMFUSE_INLINE I LoadAs(const int32_t* p) { return {vld1q_s32(p)}; }
NORMFUSE_INLINE I LoadAs(const uint32_t* p) { return {vreinterpretq_s32_u32(vld1q_u32(p))}; }

// Stores.
NORMFUSE_INLINE void Store(float* p, V a) { vst1q_f32(p, a.v); }
NORMFUSE_INLINE void Store32(void* p, uint8x8_t a) {
  const uint32_t bits = vget_lane_u32(vreinterpret_u32_u8(a), 0);
  __builtin_memcpy(p, &bits, sizeof(bits));
}
// Float to an integer type's range, NaN to its minimum, and rounded.
NORMFUSE_INLINE I RoundClamped(V a, float low, float high) { return ToInt(Min(Max(a, Set(low)), Set(high))); }

NORMFUSE_INLINE void StoreAs(float* p, V a) { Store(p, a); }
NORMFUSE_INLINE void StoreAs(Half* p, V a) {
  vst1_u16(reinterpret_cast<uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(a.v)));
}
NORMFUSE_INLINE void StoreAs(Bfloat16* p, V a) {
  const I bits = BitCastToInt(a);
  const I rounded = bits + SetI(0x7FFF) + (ShiftRightLogical<16>(bits) & SetI(1));
  const I chosen = SelectI(IsNan(a), bits | SetI(0x00400000), rounded);
  vst1_u16(reinterpret_cast<uint16_t*>(p), vshrn_n_u32(vreinterpretq_u32_s32(chosen.v), 16));
}
NORMFUSE_INLINE void StoreAs(int8_t* p, I a) {
  const int16x4_t words = vqmovn_s32(a.v);
  Store32(p, vreinterpret_u8_s8(vqmovn_s16(vcombine_s16(words, words))));
}
NORMFUSE_INLINE void StoreAs(uint8_t* p, I a) {
  const int16x4_t words = vqmovn_s32(a.v);
  Store32(p, vqmovun_s16(vcombine_s16(words, words)));
}
NORMFUSE_INLINE void StoreAs(int8_t* p, V a) { StoreAs(p, RoundClamped(a, -128.0f, 127.0f)); }
NORMFUSE_INLINE void StoreAs(uint8_t* p, V a) { StoreAs(p, RoundClamped(a, 0.0f, 255.0f)); }
NORMFUSE_INLINE void StoreAs(int16_t* p, V a) { vst1_s16(p, vqmovn_s32(RoundClamped(a, -32768.0f, 32767.0f).v)); }
NORMFUSE_INLINE void StoreAs(uint16_t* p, V a) { vst1_u16(p, vqmovun_s32(RoundClamped(a, 0.0f, 65535.0f).v)); }

#include "cpu/simd/partial-inl.h"

NORMFUSE_INLINE V LoadPartial(const float* p, size_t n) { return LoadAsPartial(p, n); }
NORMFUSE_INLINE void StorePartial(float* p, V a, size_t n) { StoreAsPartial(p, a, n); }

}  // namespace normfuse::NORMFUSE_ISA
