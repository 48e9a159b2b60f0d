// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_EXAMPLE_WIRE_H_
#define MILLRACE_DATA_EXAMPLE_WIRE_H_

// Reads serialized tensorflow.Example and SequenceExample messages without building them.
//
//   Example { Features features = 1; }   Features { map<string, Feature> feature = 1; }
//   Feature { oneof { BytesList = 1; FloatList = 2; Int64List = 3; } }   lists: value = 1
//   SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
//   FeatureLists { map<string, FeatureList> feature_list = 1; }   FeatureList { feature = 1; }
//
// A view points into the serialized bytes, which must outlive it. Numbers may be packed or not;
// unknown fields are skipped; parts of one message that come apart are merged, as protobuf says;
// of two entries with one key the last counts. How writers write is read fast, all else as well.
//
// Nothing is allocated from sizes in the bytes: a length is checked against what is left.
//
// Thread-safety: pure functions, and values. Failure: false, for bytes that are no such message.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace millrace {

// --- Entries of maps

struct FeatureEntry {
  absl::string_view key;
  absl::string_view feature;  // a serialized Feature, or FeatureList
};

// The entries of the map behind one field of a message, in their order.
class FeatureEntries {
 public:
  // An Example's features, and a SequenceExample's context; a SequenceExample's lists.
  enum Map : uint32_t { kFeatures = 1, kFeatureLists = 2 };

  explicit FeatureEntries(absl::string_view message, Map map = kFeatures)
      : at_(message.data()), end_(at_ + message.size()), map_(map) {}
  // False: there is none any more, or the bytes are no such message.
  bool Next(FeatureEntry* entry);
  bool ok() const { return ok_; }

 private:
  const char* at_;  // in the message
  const char* end_;
  const char* map_at_ = nullptr;  // in a part of the map
  const char* map_end_ = nullptr;
  const Map map_;
  bool ok_ = true;
};

// The serialized Features of a serialized FeatureList, in their order.
class ListFeatures {
 public:
  explicit ListFeatures(absl::string_view list) : at_(list.data()), end_(at_ + list.size()) {}
  // False: there is none any more, or the bytes are no such message.
  bool Next(absl::string_view* feature);
  bool ok() const { return ok_; }

 private:
  const char* at_;
  const char* end_;
  bool ok_ = true;
};

// --- The values of a feature

enum class FeatureKind { kNone, kBytes, kFloat, kInt64 };

struct FeatureValues {
  FeatureKind kind = FeatureKind::kNone;
  // All values in one piece, as writers write them: packed numbers, or the only string. Otherwise
  // `bytes` are fields of the Feature; those of the kind's number are its lists.
  bool in_one_piece = false;
  int64_t count = 0;
  absl::string_view bytes;
};

// Checks all bytes of the feature.
bool ReadValues(absl::string_view feature, FeatureValues* values);
// `out` has their number, and is of their kind.
void CopyValues(const FeatureValues& values, absl::Span<std::string> out);
void CopyValues(const FeatureValues& values, absl::Span<float> out);
void CopyValues(const FeatureValues& values, absl::Span<int64_t> out);

}  // namespace millrace

#endif  // MILLRACE_DATA_EXAMPLE_WIRE_H_
