// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_EXAMPLE_BUILDER_H_
#define MILLRACE_DATA_EXAMPLE_BUILDER_H_

// ExampleBuilder: writes serialized tensorflow.Example messages without building them (the
// counterpart of data/example_wire.h).
//
//   ExampleBuilder example;
//   example.AddInts("age", {39});
//   example.AddTexts("words", {"a", "b"});
//   writer->WriteRecord(example.Finish());
//
// Features stand in the order in which they were added, so equal calls give equal bytes. Numbers
// are packed, as TensorFlow packs them.
//
// Thread-safety: thread-compatible. Cannot fail.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace millrace::data {

class ExampleBuilder {
 public:
  // Each name once.
  void AddInts(absl::string_view name, absl::Span<const int64_t> values);
  void AddFloats(absl::string_view name, absl::Span<const float> values);
  void AddTexts(absl::string_view name, absl::Span<const std::string> values);

  // The message; valid until the next call. The next Add begins another one.
  absl::string_view Finish();

 private:
  // A feature whose list, of kind `field`, has these bytes.
  void AddList(absl::string_view name, int field, absl::string_view list);

  std::string features_, list_, example_;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_EXAMPLE_BUILDER_H_
