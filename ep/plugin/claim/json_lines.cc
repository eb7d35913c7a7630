#include "plugin/claim/json_lines.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>

#include "chain/utf8.h"

namespace normfuse::plugin {
namespace {

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closer>;

// To be appended to. Not a stream of the C++ library, which brings 0.8 MB of locales with it.
Result Open(const char* option, const std::string& name, File* file) {
#ifdef _WIN32
  // Options are UTF-8, which Windows does not take for a file's name as it is.
  file->reset(_wfopen(std::filesystem::path(std::u8string(name.begin(), name.end())).c_str(), L"ab"));
#else
  file->reset(std::fopen(name.c_str(), "ab"));
#endif
  if (*file) return {};
  return Result::Error(ErrorCode::kFail, std::string("NormFuseExecutionProvider: cannot write ") + option + " '" +
                                             name + "'; name a file in a folder that exists");
}

}  // namespace

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : ValidUtf8(std::string(text))) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string RefusalFields(const Declined& declined) {
  const ReasonSpec& reason = kReasons[static_cast<int>(declined.reason)];
  return "\"reason\": " + Quoted(reason.code) + ", \"message\": " + Quoted(declined.message) +
         ", \"advice\": " + Quoted(reason.advice);
}

Result CheckJsonLines(const char* option, const std::string& file) {
  if (file.empty()) return {};
  File opened;
  return Open(option, file, &opened);
}

Result AppendJsonLines(const char* option, const std::string& file, const std::string& lines) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  File opened;
  NORMFUSE_RETURN_IF_ERROR(Open(option, file, &opened));
  const bool written = std::fwrite(lines.data(), 1, lines.size(), opened.get()) == lines.size();
  // What is left in the buffer is written when the file is closed.
  if (std::fclose(opened.release()) == 0 && written) return {};
  return Result::Error(ErrorCode::kFail, std::string("NormFuseExecutionProvider: cannot write ") + option + " '" +
                                             file + "'; is there no room left?");
}

}  // namespace normfuse::plugin
