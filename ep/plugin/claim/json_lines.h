// Files of JSON objects, one a line, that options name.
#pragma once

#include <string>
#include <string_view>

#include "chain/reason.h"
#include "chain/result.h"

namespace normfuse::plugin {

// A JSON string.
std::string Quoted(std::string_view text);

// "reason", "message" and "advice" of a refusal, without braces.
std::string RefusalFields(const Declined& declined);

// Whether the file can be written; makes it. Called when a session is created: later failures are only logged by ORT.
Result CheckJsonLines(const char* option, const std::string& file);

// Appends lines, each of which ends with a newline. Safe to call from several threads.
Result AppendJsonLines(const char* option, const std::string& file, const std::string& lines);

}  // namespace normfuse::plugin
