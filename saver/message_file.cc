// SPDX-License-Identifier: Apache-2.0
#include "saver/message_file.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <limits>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// Nesting of text messages: real files have about 15 levels.
constexpr int kMaxTextNesting = 100;

class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (error.what.empty()) error = {line + 1, column + 1, message};
  }
  TextError error;
};

}  // namespace

Status ParseBytes(absl::string_view bytes, const std::string& path, absl::string_view what,
                  google::protobuf::Message* message) {
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError(absl::StrCat("File '", path, "' must hold a ", what, ", got ",
                                            bytes.size(), " bytes that are none"));
  }
  return absl::OkStatus();
}

Status ParseText(absl::string_view text, const std::string& path, absl::string_view what,
                 google::protobuf::Message* message, TextError* error) {
  google::protobuf::TextFormat::Parser parser;
  FirstError first;
  parser.RecordErrorsTo(&first);
  parser.SetRecursionLimit(kMaxTextNesting);
  if (parser.ParseFromString(std::string(text), message)) return absl::OkStatus();
  if (error != nullptr) *error = first.error;
  return absl::DataLossError(absl::StrCat("File '", path, "' must hold the text of a ", what,
                                          ", got ", first.error.line, ":", first.error.column, ": ",
                                          first.error.what));
}

}  // namespace millrace
