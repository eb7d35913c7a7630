// Tails by way of a buffer, for instruction sets without masked 8- and 16-bit memory operations. Included by simd.h for these.

// The part of CopyElements that is kStep bytes long, where there can be one.
template <size_t kStep, typename T>
NORMFUSE_INLINE void CopyStep(char* to, const char* from, size_t bytes, size_t& done) {
  if constexpr (kStep >= sizeof(T) && kStep <= kLanes * sizeof(T)) {
    if (bytes & kStep) {
      __builtin_memcpy(to + done, from + done, kStep);
      done += kStep;
    }
  }
}

// Copies n <= kLanes elements without a call.
template <typename T>
NORMFUSE_INLINE void CopyElements(T* to, const T* from, size_t n) {
  char* t = reinterpret_cast<char*>(to);
  const char* f = reinterpret_cast<const char*>(from);
  const size_t bytes = n * sizeof(T);
  size_t done = 0;
  CopyStep<32, T>(t, f, bytes, done);
  CopyStep<16, T>(t, f, bytes, done);
  CopyStep<8, T>(t, f, bytes, done);
  CopyStep<4, T>(t, f, bytes, done);
  CopyStep<2, T>(t, f, bytes, done);
  CopyStep<1, T>(t, f, bytes, done);
}

template <typename T>
NORMFUSE_INLINE auto LoadAsPartial(const T* p, size_t n) {
  T buffer[kLanes] = {};
  CopyElements(buffer, p, n);
  return LoadAs(buffer);
}

template <typename T, typename Vector>
NORMFUSE_INLINE void StoreAsPartial(T* p, Vector a, size_t n) {
  T buffer[kLanes];
  StoreAs(buffer, a);
  CopyElements(p, buffer, n);
}
