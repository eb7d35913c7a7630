// Working memory with one owner at a time. Two users of the same room are wrong numbers that nothing reports, so a room is
// only had through a loan; builds with NORMFUSE_CHECK_ROOMS (the sanitized and the debug ones) end the process at a second
// loan, and at a reader of what nobody has.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace normfuse::cpu {

#ifdef NORMFUSE_CHECK_ROOMS
inline constexpr bool kChecksRooms = true;
#else
inline constexpr bool kChecksRooms = false;
#endif

template <int64_t kSize>
class Room {
 public:
  // Has the room for as long as it lives.
  class Loan {
   public:
    explicit Loan(Room* room) : room_(room) { room_->SetLent(true); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    ~Loan() { room_->SetLent(false); }

    float* data() const { return room_->data_; }

   private:
    Room* room_;
  };

  // For whom its owner calls.
  float* lent() {
    if constexpr (kChecksRooms) Check(lent_, "is read, and nobody has it");
    return data_;
  }

 private:
  void SetLent(bool lent) {
    if constexpr (kChecksRooms) {
      Check(lent_ != lent, "is lent while another user has it");
      lent_ = lent;
    }
  }
  static void Check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "normfuse: a room of %lld floats %s\n", static_cast<long long>(kSize), what);
    std::abort();
  }

  alignas(64) float data_[kSize];
  bool lent_ = false;
};

}  // namespace normfuse::cpu
