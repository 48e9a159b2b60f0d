// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/json_column.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/shape.h"
#include "serving/rest/json_plain_number.h"

namespace millrace {
namespace {

// Calls fn.operator()<T>() for the dtypes whose elements are JSON numbers.
template <typename Fn>
bool ForNumbersOf(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DT_FLOAT:
      return fn.template operator()<float>();
    case DT_DOUBLE:
      return fn.template operator()<double>();
    case DT_INT8:
      return fn.template operator()<int8_t>();
    case DT_INT16:
      return fn.template operator()<int16_t>();
    case DT_INT32:
      return fn.template operator()<int32_t>();
    case DT_INT64:
      return fn.template operator()<int64_t>();
    case DT_UINT8:
      return fn.template operator()<uint8_t>();
    case DT_UINT16:
      return fn.template operator()<uint16_t>();
    case DT_UINT32:
      return fn.template operator()<uint32_t>();
    case DT_UINT64:
      return fn.template operator()<uint64_t>();
    default:
      return false;
  }
}

bool HasNumbers(DType dtype) {
  return ForNumbersOf(dtype, []<typename T>() { return true; });
}

// False: not in the range of T, or no whole number where T has only these.
template <typename T>
bool Convert(const JsonNumber& number, T* out) {
  if constexpr (std::is_floating_point_v<T>) {
    *out = static_cast<T>(number.ToDouble());
    return true;
  } else {
    if (number.is_decimal()) return false;
    if (number.is_negative_integer()) {
      if (!std::is_signed_v<T> ||
          number.negative() < static_cast<int64_t>(std::numeric_limits<T>::min())) {
        return false;
      }
      *out = static_cast<T>(number.negative());
      return true;
    }
    if (number.magnitude() > static_cast<uint64_t>(std::numeric_limits<T>::max())) return false;
    *out = static_cast<T>(number.magnitude());
    return true;
  }
}

}  // namespace

Status JsonProblem::ToStatus(absl::string_view body, const JsonLimits& limits) const {
  std::string shown;
  if (value_at != kNoJsonValue) shown = ShownJson(body, value_at, limits.max_shown_bytes);
  return Status(code, absl::StrCat(before, shown, after));
}

const char* JsonLeaf::TypeName() const {
  switch (kind) {
    case Kind::kNull:
      return "Null";
    case Kind::kBool:
      return truth ? "True" : "False";
    case Kind::kNumber:
      return "Number";
    case Kind::kString:
      return "String";
  }
  return "";
}

std::string JsonLeaf::Shown(size_t max_bytes) const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return truth ? "true" : "false";
    case Kind::kNumber:
      return number->ToString();
    case Kind::kString:
      return QuotedJson(text, max_bytes);
  }
  return "";
}

void JsonValueReader::Start(JsonColumn* column) {
  column_ = column;
  begin_ = column->size;
  level_ = 0;
  rank_ = -1;
  dims_.clear();
  problem_.reset();
}

void JsonValueReader::StartList() {
  const size_t at = bytes_->Tell();
  if (problem_ == nullptr && rank_ >= 0 && level_ >= rank_) {
    Note(At(absl::StrCat("Encountered list at unexpected level: ", level_, " expected < ", rank_)));
  }
  list_at_.push_back(at);
  taken_.push_back(0);
  if (rank_ < 0) dims_.push_back(-1);
  ++level_;
}

bool JsonValueReader::EndList(int64_t size) {
  --level_;
  size += taken_.back();
  taken_.pop_back();
  const size_t at = list_at_.back();
  list_at_.pop_back();
  if (rank_ < 0) rank_ = level_ + 1;  // the first list of this level, and empty
  if (level_ < rank_) {
    int64_t& expected = dims_[static_cast<size_t>(level_)];
    if (expected < 0) {
      expected = size;
    } else if (expected != size && (problem_ == nullptr || problem_->position >= at)) {
      // The length of a list counts before what is in it.
      problem_ = std::make_unique<JsonProblem>(
          JsonProblem{.position = at,
                      .before = absl::StrCat("Encountered list at unexpected size: ", size,
                                             " at level: ", level_, " expected size: ", expected)});
    }
  }
  return level_ == 0;
}

bool JsonValueReader::AddLeaf(const JsonLeaf& leaf) {
  if (LeafFits(&leaf, kNoJsonValue)) {
    const DType dtype = column_->dtype;
    if (leaf.kind == JsonLeaf::Kind::kNumber) {
      AddNumber(*leaf.number);
    } else if (leaf.kind == JsonLeaf::Kind::kString && dtype == DT_STRING) {
      AddString(std::string(leaf.text));
    } else if (leaf.kind == JsonLeaf::Kind::kBool && dtype == DT_BOOL) {
      if (Room(1))
        static_cast<bool*>(column_->values.mutable_raw_data())[column_->size++] = leaf.truth;
    } else {
      NoteType(leaf);
    }
  }
  return level_ == 0;
}

bool JsonValueReader::AddObject(size_t begin, const std::string* base64) {
  if (LeafFits(nullptr, begin)) {
    std::string text;
    if (column_->dtype != DT_STRING) {
      Note(At("JSON Value: ", begin,
              absl::StrCat(" Type: Object is not of expected type: ", DTypeName(column_->dtype))));
    } else if (base64 == nullptr) {
      Note(At("JSON Value: ", begin, " not formatted correctly for base64 data"));
    } else if (!absl::Base64Unescape(*base64, &text)) {
      Note(At("Unable to base64 decode"));
    } else {
      AddString(std::move(text));
    }
  }
  return level_ == 0;
}

void JsonValueReader::AddNumberOfList(const JsonNumber& number) {
  const JsonLeaf leaf = {.kind = JsonLeaf::Kind::kNumber, .number = &number};
  if (LeafFits(&leaf, kNoJsonValue) && AddNumber(number)) {
    taken_.back() += TakePlainNumbers(column_);
  }
}

int64_t JsonValueReader::TakePlainNumbers(JsonColumn* to) {
  JsonColumn& column = *to;
  int64_t taken = 0;
  ForNumbersOf(column.dtype, [&]<typename T>() {
    T* out = static_cast<T*>(column.values.mutable_raw_data()) + column.size;
    const int64_t room =
        std::min({column.capacity - column.size, limits_.max_elements - elements_,
                  (limits_.max_bytes - used_bytes_) / static_cast<int64_t>(sizeof(T))});
    taken = ReadPlainNumbers(&bytes_->src_, bytes_->end_, out, room);
    used_bytes_ += taken * static_cast<int64_t>(sizeof(T));
    return true;
  });
  column.size += taken;
  elements_ += taken;
  return taken;
}

// Is an element wanted here? It is `leaf`, or the object at `object_at`.
bool JsonValueReader::LeafFits(const JsonLeaf* leaf, size_t object_at) {
  if (rank_ < 0) rank_ = level_;
  if (problem_ != nullptr) return false;
  if (level_ == rank_) return true;
  std::string after = absl::StrCat(" found at incorrect level: ", level_ + 1,
                                   " in the JSON DOM. Expected at level: ", rank_);
  if (leaf == nullptr) {
    Note(At("JSON Value: ", object_at, std::move(after)));
  } else {
    Note(At(absl::StrCat("JSON Value: ", leaf->Shown(limits_.max_shown_bytes), after)));
  }
  return false;
}

// False: it is not the dtype's, or there is no room.
bool JsonValueReader::AddNumber(const JsonNumber& number) {
  JsonColumn& column = *column_;
  const DType dtype = column.dtype;
  const bool added = ForNumbersOf(dtype, [&]<typename T>() {
    T value{};
    if (!Convert(number, &value)) return false;
    if (!Room(sizeof(T))) return false;
    static_cast<T*>(column.values.mutable_raw_data())[column.size++] = value;
    return true;
  });
  if (added || !stopped_.ok()) return added;
  NoteType({.kind = JsonLeaf::Kind::kNumber, .number = &number});
  return false;
}

void JsonValueReader::AddString(std::string text) {
  if (!Room(static_cast<int64_t>(sizeof(std::string) + text.size()))) return;
  column_->values.mutable_raw<std::string>()[static_cast<size_t>(column_->size++)] =
      std::move(text);
}

// Makes room for one more element, of `bytes` bytes with what it refers to.
bool JsonValueReader::Room(int64_t bytes) {
  ++elements_;
  used_bytes_ += bytes;
  if (elements_ > limits_.max_elements) {
    Stop(InvalidArgument("JSON request: its tensors may have at most ", limits_.max_elements,
                         " elements, got more"));
    return false;
  }
  if (used_bytes_ > limits_.max_bytes) {
    Stop(InvalidArgument("JSON request: its tensors may have at most ", limits_.max_bytes,
                         " bytes, got more"));
    return false;
  }
  return column_->size < column_->capacity || Grow();
}

bool JsonValueReader::Grow() {
  JsonColumn& column = *column_;
  int64_t wanted = 2 * column.capacity;
  if (column.capacity == 0) {
    // A number has some 8 bytes of text, or more. A string's object is four times as large.
    const auto left = static_cast<int64_t>(body_.size() - std::min(bytes_->Tell(), body_.size()));
    const int64_t share = left / num_columns_;
    wanted = std::max<int64_t>(16, share / (HasNumbers(column.dtype) ? 8 : 32));
  }
  wanted = std::min(wanted, column.size + (limits_.max_elements - elements_) + 1);
  StatusOr<Shape> shape = Shape::Make({wanted});
  StatusOr<Tensor> larger =
      shape.ok() ? Tensor::Allocate(column.dtype, *shape) : StatusOr<Tensor>(shape.status());
  if (!larger.ok()) {
    Stop(larger.status());
    return false;
  }
  if (column.size > 0) {
    if (column.dtype == DT_STRING) {
      absl::Span<std::string> from = column.values.mutable_raw<std::string>();
      std::move(from.begin(), from.begin() + column.size,
                larger->mutable_raw<std::string>().begin());
    } else {
      std::memcpy(larger->mutable_raw_data(), column.values.raw_data(),
                  static_cast<size_t>(column.size) * DTypeSize(column.dtype));
    }
  }
  column.values = *std::move(larger);
  column.capacity = wanted;
  return true;
}

void JsonValueReader::NoteType(const JsonLeaf& leaf) {
  const DType dtype = column_->dtype;
  const std::string shown = leaf.Shown(limits_.max_shown_bytes);
  if (dtype != DT_STRING && dtype != DT_BOOL && !HasNumbers(dtype)) {
    JsonProblem problem =
        At(absl::StrCat("Conversion of JSON Value: ", shown, " to type: ", DTypeName(dtype)));
    problem.code = absl::StatusCode::kUnimplemented;
    return Note(std::move(problem));
  }
  Note(At(absl::StrCat("JSON Value: ", shown, " Type: ", leaf.TypeName(),
                       " is not of expected type: ", DTypeName(dtype))));
}

void JsonValueReader::Note(JsonProblem problem) {
  if (problem_ == nullptr) problem_ = std::make_unique<JsonProblem>(std::move(problem));
}

}  // namespace millrace
