// Asks Microsoft's own DirectML whether it would create an operator.
#pragma once

#include "abi/directml_abi.h"

namespace normfuse::test {

// False where the library that NORMFUSE_ASK_DIRECTML names refuses; true where none is named. The variable lists files that
// are loaded in this order, with colons between them: what the library needs first, the library last.
bool MicrosoftAccepts(const abi::DML_OPERATOR_DESC& desc);

}  // namespace normfuse::test
