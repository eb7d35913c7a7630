#include "chain/utf8.h"

namespace normfuse {
namespace {

// How many bytes the character at `at` has; 0: there is none.
size_t CharacterLength(const std::string& text, size_t at) {
  const auto byte = [&](size_t index) { return index < text.size() ? static_cast<unsigned char>(text[index]) : 0u; };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  }
  const unsigned second = byte(at + 1);
  // Spelled longer than need be, halves of UTF-16's pairs, and what lies beyond Unicode.
  const bool excluded = (first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
                        (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F);
  return excluded ? 0 : length;
}

}  // namespace

std::string ValidUtf8(std::string text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = CharacterLength(text, at);
    if (length == 0) text[at] = '?';
    at += length == 0 ? 1 : length;
  }
  return text;
}

std::string Shortened(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace normfuse
