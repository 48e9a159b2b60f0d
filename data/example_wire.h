// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_EXAMPLE_WIRE_H_
#define MILLRACE_DATA_EXAMPLE_WIRE_H_

// Reads serialized tensorflow.Example messages without building them.
//
//   Example { Features features = 1; }   Features { map<string, Feature> feature = 1; }
//   Feature { oneof { BytesList = 1; FloatList = 2; Int64List = 3; } }   lists: value = 1
//
// A view points into the serialized bytes, which must outlive it. Numbers may be packed or not;
// unknown fields are skipped; parts of one message that come apart are merged, as protobuf says;
// of two entries with one key the last counts.
//
// Nothing is allocated from sizes in the bytes: a length is checked against what is left.
//
// Thread-safety: pure functions. Failure: false, for bytes that are no such message.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace millrace {

enum class FeatureKind { kNone, kBytes, kFloat, kInt64 };

// The value of one feature.
struct FeatureView {
  FeatureKind kind = FeatureKind::kNone;
  // Fields of the Feature message; those of the kind's number are its lists.
  absl::string_view fields;
};

struct FeatureEntry {
  absl::string_view key;
  absl::string_view feature;  // a serialized Feature
};

// The entries of the map in their order.
bool ReadExample(absl::string_view example, std::vector<FeatureEntry>* entries);
bool ReadFeature(absl::string_view feature, FeatureView* view);

// How many values a feature has; checks all of its bytes.
bool CountValues(const FeatureView& view, int64_t* count);
// Copies the values of a feature whose bytes CountValues has found good; `out` has their number.
void CopyValues(const FeatureView& view, absl::Span<std::string> out);
void CopyValues(const FeatureView& view, absl::Span<float> out);
void CopyValues(const FeatureView& view, absl::Span<int64_t> out);

}  // namespace millrace

#endif  // MILLRACE_DATA_EXAMPLE_WIRE_H_
