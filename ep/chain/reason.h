// Why a site is left as it is: a code of the closed set in reasons.toml and its sentence, filled in.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "chain/chain.h"

namespace normfuse {

struct Declined {
  Reason reason;
  std::string message;
};

using ReasonArguments = std::initializer_list<std::pair<std::string_view, std::string_view>>;

// The reason's sentence with every {name} replaced by its argument.
Declined Decline(Reason reason, ReasonArguments arguments);

}  // namespace normfuse
