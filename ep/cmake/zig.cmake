# Toolchain file: cross-compiles with zig (the package ziglang), which brings every target's C and C++ runtime.
#   cmake -S ep -B build/zig --toolchain cmake/zig.cmake -DNORMFUSE_ZIG=<path of zig> -DNORMFUSE_ZIG_TARGET=<target>
# Targets: x86_64-windows-gnu, x86_64-linux-gnu.2.28, aarch64-macos.11.0, ... (the number is the oldest glibc or macOS).
# The flags must stay the same from build to build: zig builds its C++ runtime once for each set of them.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES NORMFUSE_ZIG NORMFUSE_ZIG_TARGET)
foreach(required NORMFUSE_ZIG NORMFUSE_ZIG_TARGET)
  if(NOT ${required})
    message(FATAL_ERROR "${required} is not set: see ep/cmake/zig.cmake")
  endif()
endforeach()

if(NORMFUSE_ZIG_TARGET MATCHES "windows")
  set(CMAKE_SYSTEM_NAME Windows)
elseif(NORMFUSE_ZIG_TARGET MATCHES "macos")
  set(CMAKE_SYSTEM_NAME Darwin)
  # CMake wants this program for macOS; without run paths and with an install name of its own nothing calls it.
  set(CMAKE_INSTALL_NAME_TOOL /bin/false)
  set(CMAKE_SKIP_RPATH ON)
else()
  set(CMAKE_SYSTEM_NAME Linux)
endif()
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR "${NORMFUSE_ZIG_TARGET}")

set(CMAKE_CXX_COMPILER "${NORMFUSE_ZIG}" c++)
set(CMAKE_CXX_COMPILER_TARGET ${NORMFUSE_ZIG_TARGET})
# zig keeps what it compiled by itself, and ccache does not know its command line.
set(CMAKE_CXX_COMPILER_LAUNCHER "" CACHE STRING "" FORCE)
# CMake wants a resource compiler for Windows; nothing here is compiled by it.
set(CMAKE_RC_COMPILER "${NORMFUSE_ZIG}")
# `ar` and `ranlib` are subcommands of zig; CMake wants a program each.
foreach(tool ar ranlib)
  set(wrapper "${CMAKE_BINARY_DIR}/zig-${tool}")
  file(WRITE "${wrapper}" "#!/bin/sh\nexec '${NORMFUSE_ZIG}' ${tool} \"$@\"\n")
  file(CHMOD "${wrapper}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endforeach()
set(CMAKE_AR "${CMAKE_BINARY_DIR}/zig-ar")
set(CMAKE_RANLIB "${CMAKE_BINARY_DIR}/zig-ranlib")
# zig builds its C++ runtime, which takes minutes, once for stripped files and once for others. So everything is stripped,
# and CMake's own checks, which link in a way of their own, only compile (the first one because it knows the target).
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-s")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-s")
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
