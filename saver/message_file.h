// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_MESSAGE_FILE_H_
#define MILLRACE_SAVER_MESSAGE_FILE_H_

// Protocol messages from the bytes or text of files, for readers that trust nothing: the
// nesting of text is bounded, an error says where the text is wrong.
//
// Thread-safety: pure functions. Failure: DataLoss that names the file, the kind of message that it
// must hold and what it holds instead.

#include <google/protobuf/message.h>

#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

// The first thing in a text that its parser did not accept. Lines and columns count from 1.
struct TextError {
  int line = 0;
  int column = 0;
  std::string what;
};

// The bytes (or text) of a file as a message. `what` names the kind in messages: "MetaGraphDef".
Status ParseBytes(absl::string_view bytes, const std::string& path, absl::string_view what,
                  google::protobuf::Message* message);
// `error`, when not null, gets the place by itself when the text is wrong.
Status ParseText(absl::string_view text, const std::string& path, absl::string_view what,
                 google::protobuf::Message* message, TextError* error = nullptr);

}  // namespace millrace

#endif  // MILLRACE_SAVER_MESSAGE_FILE_H_
