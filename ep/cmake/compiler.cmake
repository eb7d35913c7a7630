# Enables C++, or says in one sentence what is missing: what CMake itself prints does not help a newcomer.
# Included at the top level: CMake does not enable languages in functions.

string(CONCAT what_to_do
  "On Debian and Ubuntu: apt-get install g++; on Fedora: dnf install gcc-c++; on macOS: Xcode's command line tools; on "
  "Windows: a wheel made by tools/build_wheels.py, or MinGW-w64. Another compiler is named by the environment variable CXX.")
if(NOT CMAKE_TOOLCHAIN_FILE AND NOT CMAKE_CXX_COMPILER)
  include(CheckLanguage)
  check_language(CXX)
  if(NOT CMAKE_CXX_COMPILER)
    message(FATAL_ERROR "normfuse needs a C++20 compiler, and none was found. ${what_to_do}")
  endif()
endif()
enable_language(CXX)
set(oldest_GNU 12)
set(oldest_Clang 16)
set(oldest_AppleClang 15) # made of LLVM 16
set(oldest "${oldest_${CMAKE_CXX_COMPILER_ID}}")
if(NOT oldest OR CMAKE_CXX_COMPILER_FRONTEND_VARIANT STREQUAL "MSVC")
  message(FATAL_ERROR "normfuse is built by gcc 12 or clang 16 or newer, and this compiler is "
                      "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}. ${what_to_do}")
elseif(CMAKE_CXX_COMPILER_VERSION VERSION_LESS oldest)
  message(FATAL_ERROR "normfuse needs ${CMAKE_CXX_COMPILER_ID} ${oldest} or newer for C++20, and this is "
                      "${CMAKE_CXX_COMPILER_VERSION}. ${what_to_do}")
endif()
