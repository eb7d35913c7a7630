// Names and attributes of a model are bytes, which need not be text.
#pragma once

#include <string>

namespace normfuse {

// The text with each byte that belongs to no character of UTF-8 as '?': for messages, which ONNX Runtime's Python package
// and readers of the claim report decode.
std::string ValidUtf8(std::string text);

}  // namespace normfuse
