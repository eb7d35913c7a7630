// Memory that ends where the program may not read: a load beyond it stops the test.
#pragma once

namespace normfuse::test {

// One past 4096 readable and writable bytes, which an inaccessible page follows. The same address at every call.
unsigned char* EndOfMemory();

}  // namespace normfuse::test
