// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_REST_JSON_COLUMN_H_
#define MILLRACE_SERVING_REST_JSON_COLUMN_H_

// The tensor of one input of a request while it grows, and the reader of one value of it: lists in
// lists to elements, with TensorFlow Serving's checks.
//
//   values.Start(&column);
//   values.StartList();
//   values.AddLeaf(leaf);            // false: the value goes on
//   if (values.EndList(1)) ...       // true: it is complete; values.dims(), values.TakeProblem()
//
// The shape of a value is that of its first elements: the first list of each level says how long
// lists of this level are, the first element says how many levels there are. Of several mistakes
// the outermost counts, then the first. After a mistake nothing is added, but lists are still
// measured.
//
// Thread-compatible. Failure: stopped() is an error when a bound of JsonLimits is exceeded; the
// request is then over. Mistakes in the value are problems, reported when the whole body was read.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "rapidjson/memorystream.h"
#include "serving/rest/json_scan.h"

namespace millrace {

using JsonDims = std::vector<int64_t>;
inline constexpr size_t kNoJsonValue = std::numeric_limits<size_t>::max();

// A mistake in the data. What of it is a value in the body is printed once it is to be reported.
struct JsonProblem {
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  size_t position = 0;             // where in the body, in the order in which mistakes count
  std::string before;              // the message up to the value
  size_t value_at = kNoJsonValue;  // where the value begins; else the message has none
  std::string after = "";

  Status ToStatus(absl::string_view body, const JsonLimits& limits) const;
};

struct JsonColumn {
  DType dtype = DT_INVALID;
  Tensor values;  // [capacity], the first `size` of them given; none while there is no element
  int64_t capacity = 0, size = 0;
};

// A value that is no list and no object.
struct JsonLeaf {
  enum class Kind { kNull, kBool, kNumber, kString };
  Kind kind;
  bool truth = false;
  const JsonNumber* number = nullptr;
  absl::string_view text = {};

  // As messages name and show it.
  const char* TypeName() const;
  std::string Shown(size_t max_bytes) const;
};

class JsonValueReader {
 public:
  // All must outlive the reader. `bytes` is where the reader of the body stands.
  JsonValueReader(absl::string_view body, rapidjson::MemoryStream* bytes, const JsonLimits* limits)
      : body_(body), bytes_(bytes), limits_(*limits) {}

  // How many columns the body is for: none gets much more room than its share before it needs it.
  void set_num_columns(size_t n) { num_columns_ = static_cast<int64_t>(n); }

  // Begins a value. `column` must outlive it.
  void Start(JsonColumn* column);
  // Each of these returns whether the value is complete.
  void StartList();
  bool EndList(int64_t size);  // without the plain numbers that were taken in it
  bool AddLeaf(const JsonLeaf& leaf);
  // The object at `begin`: {"b64": `base64`}, or any other one when that is null.
  bool AddObject(size_t begin, const std::string* base64);
  // As AddLeaf, within a list; takes the plain numbers that follow in it, too.
  void AddNumberOfList(const JsonNumber& number);
  // The reader stands behind a number that was added to the column: takes the plain numbers that
  // follow it in its list, and says how many. The reader goes on behind them, at a comma or at the
  // list's end.
  int64_t TakePlainNumbers(JsonColumn* column);

  // Of the value that is complete: its shape, its number of elements, its mistake (null: none).
  const JsonDims& dims() const { return dims_; }
  int64_t size() const { return column_->size - begin_; }
  std::unique_ptr<JsonProblem> TakeProblem() { return std::move(problem_); }

  const Status& stopped() const { return stopped_; }

 private:
  JsonProblem At(std::string before, size_t value_at = kNoJsonValue, std::string after = "") const {
    return {.position = bytes_->Tell(),
            .before = std::move(before),
            .value_at = value_at,
            .after = std::move(after)};
  }
  // The value's first mistake.
  void Note(JsonProblem problem);
  void NoteType(const JsonLeaf& leaf);
  bool LeafFits(const JsonLeaf* leaf, size_t object_at);
  bool AddNumber(const JsonNumber& number);
  void AddString(std::string text);
  bool Room(int64_t bytes);
  bool Grow();
  void Stop(Status status) {
    if (stopped_.ok()) stopped_ = std::move(status);
  }

  const absl::string_view body_;
  rapidjson::MemoryStream* const bytes_;
  const JsonLimits& limits_;
  int64_t num_columns_ = 1;
  Status stopped_;
  int64_t elements_ = 0, used_bytes_ = 0;  // of all columns

  JsonColumn* column_ = nullptr;
  int64_t begin_ = 0;            // the column's size before the value
  int level_ = 0;                // open lists
  int rank_ = -1;                // -1: not known yet
  JsonDims dims_;                // -1: not known yet
  std::vector<size_t> list_at_;  // where each open list begins
  JsonDims taken_;               // of each open list, elements that the reader did not see
  std::unique_ptr<JsonProblem> problem_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_REST_JSON_COLUMN_H_
