#include "chain/reason.h"

#include "chain/utf8.h"

namespace normfuse {
namespace {

constexpr size_t kLongestArgument = 500;  // bytes; names in a damaged model may have a million

}  // namespace

Declined Decline(Reason reason, ReasonArguments arguments) {
  std::string_view rest = kReasons[static_cast<int>(reason)].text;
  std::string message;
  while (!rest.empty()) {
    const size_t open = rest.find('{');
    const size_t close = open == std::string_view::npos ? open : rest.find('}', open);
    if (close == std::string_view::npos) break;
    message += rest.substr(0, open);
    const std::string_view name = rest.substr(open + 1, close - open - 1);
    for (const auto& [key, value] : arguments) {
      if (key == name) message += Shortened(value, kLongestArgument);
    }
    rest.remove_prefix(close + 1);
  }
  message += rest;
  return {reason, std::move(message)};
}

}  // namespace normfuse
