// Names and attributes of a model are bytes, which need not be text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace normfuse {

// The text with each byte that belongs to no character of UTF-8 as '?': for messages, which ONNX Runtime's Python package
// and readers of the claim report decode.
std::string ValidUtf8(std::string text);

// The text, or as much of its beginning as fits into `most` bytes, and "...".
std::string Shortened(std::string_view text, size_t most);

}  // namespace normfuse
