// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/json_tensors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dcheck.h"
#include "serving/rest/json_plain_number.h"

namespace millrace {
namespace {

using Dims = std::vector<int64_t>;
constexpr size_t kNowhere = std::numeric_limits<size_t>::max();

// A mistake in the data. What of it is a value in the body is printed once it is to be reported.
struct Problem {
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  size_t position = 0;         // where in the body, in the order in which mistakes count
  std::string before;          // the message up to the value
  size_t value_at = kNowhere;  // where the value begins; nowhere: the message has none
  std::string after = "";
};

Status StatusOf(const Problem& problem, absl::string_view body, const JsonLimits& limits) {
  std::string shown;
  if (problem.value_at != kNowhere) {
    shown = ShownJson(body, problem.value_at, limits.max_shown_bytes);
  }
  return Status(problem.code, absl::StrCat(problem.before, shown, problem.after));
}

// The tensor of one input, while it grows.
struct Column {
  const JsonInput* input = nullptr;
  Tensor values;  // [capacity], the first `size` of them given
  int64_t size = 0;
  // In rows: the shape and the number of elements of one row, once there is one; the last row that
  // had a value. In columns: the shape.
  bool has_shape = false;
  Dims dims;
  int64_t row_size = 0;
  int64_t last_row = -1;
  std::unique_ptr<Problem> problem;  // in columns
};

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

// A value that is no list, as messages name it.
struct Leaf {
  enum class Kind { kNull, kBool, kNumber, kString };
  Kind kind;
  bool truth = false;
  const JsonNumber* number = nullptr;
  absl::string_view text;

  const char* TypeName() const {
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
  std::string Shown(size_t max_bytes) const {
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
};

std::string ShapeText(const Dims& dims) { return absl::StrCat("[", absl::StrJoin(dims, ","), "]"); }

// The handler of the reader's events.
class PredictEvents {
 public:
  // `assumed`: the signature that the data is read for while the body has named none.
  PredictEvents(absl::string_view body, rapidjson::MemoryStream* bytes,
                const JsonInputsOf& inputs_of, const JsonLimits& limits, std::string assumed)
      : body_(body),
        bytes_(bytes),
        inputs_of_(inputs_of),
        limits_(limits),
        assumed_(std::move(assumed)) {}

  bool Null() { return OnLeaf({.kind = Leaf::Kind::kNull, .text = {}}); }
  bool Bool(bool value) { return OnLeaf({.kind = Leaf::Kind::kBool, .truth = value, .text = {}}); }
  bool Int(int value) { return OnNumber(JsonNumber::Signed(value)); }
  bool Uint(unsigned value) { return OnNumber(JsonNumber::Unsigned(value)); }
  bool Int64(int64_t value) { return OnNumber(JsonNumber::Signed(value)); }
  bool Uint64(uint64_t value) { return OnNumber(JsonNumber::Unsigned(value)); }
  bool Double(double value) { return OnNumber(JsonNumber::Decimal(value)); }
  bool RawNumber(const char*, rapidjson::SizeType, bool) { return false; }
  bool String(const char* text, rapidjson::SizeType size, bool) {
    return OnLeaf({.kind = Leaf::Kind::kString, .text = absl::string_view(text, size)});
  }
  bool Key(const char* text, rapidjson::SizeType size, bool) {
    OnKey(absl::string_view(text, size));
    return ok();
  }
  bool StartObject() {
    if (!Deeper()) return false;
    OnStartObject();
    return ok();
  }
  bool EndObject(rapidjson::SizeType) {
    --depth_;
    if (!LeftSkipped()) OnEndObject();
    return ok();
  }
  bool StartArray() {
    if (!Deeper()) return false;
    OnStartArray();
    return ok();
  }
  bool EndArray(rapidjson::SizeType size) {
    --depth_;
    if (!LeftSkipped()) OnEndArray(size);
    return ok();
  }
  // Why the reader was stopped.
  Status stopped() const { return stopped_; }

  // After the last event. `*again`: the data is another signature's; it is to be read once more,
  // for the one in signature_name().
  StatusOr<JsonPredictRequest> Finish(bool* again);
  const std::string& signature_name() const { return signature_name_; }

 private:
  // Where the next event belongs.
  enum class Place {
    kRoot,
    kTop,         // in the outermost object
    kItems,       // in the list of "instances"
    kItem,        // in an object of that list
    kInputs,      // in the object of "inputs"
    kUndecided,   // in an object that is an item, or "inputs", or {"b64": "..."}
    kTensor,      // in a list of a tensor
    kLeafObject,  // in an object that stands for an element
    kSkip,        // in what nobody reads
  };
  enum class TopKey { kOther, kSignature, kInstances, kInputs };
  enum class Rows { kUnknown, kValues, kObjects };

  bool ok() const { return stopped_.ok(); }
  size_t position() const { return bytes_->Tell(); }
  bool Deeper();
  void Stop(Status status) {
    if (stopped_.ok()) stopped_ = std::move(status);
  }
  // Nothing counts until the bracket that is the `depth`th closes.
  void SkipTo(int depth, Place after) {
    place_ = Place::kSkip;
    skip_to_ = depth;
    after_skip_ = after;
  }
  bool LeftSkipped() {
    if (place_ != Place::kSkip) return false;
    if (depth_ == skip_to_) place_ = after_skip_;
    return true;
  }

  void OnKey(absl::string_view key);
  void OnTopKey(absl::string_view key);
  void OnStartObject();
  void OnEndObject();
  void OnStartArray();
  void OnEndArray(int64_t size);
  bool OnNumber(const JsonNumber& number);
  bool OnLeaf(const Leaf& leaf);
  void OnTopLeaf(const Leaf& leaf);

  // --- Columns of the signature.
  void FindInputs();
  Column* FindColumn(absl::string_view alias);

  // --- Rows.
  bool StartItemValue();
  void StartItem();
  void EndItem();
  void EndRowValue();
  void RowProblem(Problem problem);

  // --- Objects that may be {"b64": "..."}.
  void Decide();
  void EndUndecided();

  // --- One value of a tensor.
  bool StartValue();
  void StartList();
  void EndList(int64_t size);
  void StartLeafObject();
  void EndLeafObject(bool is_base64, size_t begin);
  bool LeafFits(const Leaf* leaf, size_t object_at);
  void AddLeaf(const Leaf& leaf);
  bool AddNumber(const JsonNumber& number);
  bool AddString(std::string text);
  int64_t TakePlainNumbers();
  void EndValue();
  bool Room(int64_t bytes);
  bool Grow();
  void TypeProblem(const Leaf& leaf);
  void Note(Problem problem);

  Problem At(std::string before, size_t value_at = kNowhere, std::string after = "") const {
    return {.position = position(),
            .before = std::move(before),
            .value_at = value_at,
            .after = std::move(after)};
  }
  Status OfBody(absl::string_view rule) const {
    return InvalidArgument("JSON Value: ", ShownJson(body_, 0, limits_.max_shown_bytes), " ", rule);
  }
  Status CheckTop() const;
  StatusOr<JsonPredictRequest> FinishRows();
  StatusOr<JsonPredictRequest> FinishColumns();
  StatusOr<Tensor> TensorOf(Column* column, absl::Span<const int64_t> dims) const;

  const absl::string_view body_;
  rapidjson::MemoryStream* const bytes_;
  const JsonInputsOf& inputs_of_;
  const JsonLimits& limits_;
  Status stopped_;

  Place place_ = Place::kRoot;
  int depth_ = 0;
  int skip_to_ = 0;
  Place after_skip_ = Place::kTop;

  // The outermost object.
  bool root_is_object_ = false;
  TopKey top_key_ = TopKey::kOther;
  std::string signature_name_;
  bool has_signature_ = false, signature_is_string_ = true;
  bool has_instances_ = false, instances_are_list_ = false, has_inputs_ = false;

  // The signature that the data is read for.
  std::string assumed_;
  bool asked_ = false;
  Status asked_status_;
  absl::Span<const JsonInput> inputs_;
  std::vector<Column> columns_;
  absl::flat_hash_map<absl::string_view, size_t> index_;
  size_t next_column_ = 0;  // where the next key probably belongs

  // Rows.
  Rows rows_kind_ = Rows::kUnknown;
  int64_t rows_ = 0;
  size_t item_at_ = 0;
  int64_t item_keys_ = 0;
  std::unique_ptr<Problem> row_problem_;
  std::unique_ptr<Problem> columnar_problem_;  // of all inputs

  // An undecided object or an object in a leaf's place: where it begins, how much of {"b64": "..."}
  // was seen (0, 1: the key, 2: the string), the string.
  Place undecided_in_ = Place::kTop;
  size_t object_at_ = 0;
  int base64_seen_ = 0;
  bool may_be_base64_ = false;
  std::string base64_;

  // The value that is being read.
  Column* member_ = nullptr;  // whose the next value is; null: nobody's
  Column* column_ = nullptr;
  Place value_in_ = Place::kTop;
  int level_ = 0;  // open lists
  int rank_ = -1;  // -1: not known yet
  Dims dims_;      // -1: not known yet
  std::vector<size_t> list_at_;
  Dims taken_;  // of each open list, elements that the reader did not see
  int64_t value_begin_ = 0;
  std::unique_ptr<Problem> problem_;

  int64_t elements_ = 0, used_bytes_ = 0;
};

bool PredictEvents::Deeper() {
  if (++depth_ <= limits_.max_depth) return true;
  Stop(InvalidArgument("JSON Parse error: Lists and objects are nested deeper than ",
                       limits_.max_depth, " at offset: ", position()));
  return false;
}

void PredictEvents::FindInputs() {
  if (asked_) return;
  asked_ = true;
  if (has_signature_) assumed_ = signature_name_;
  StatusOr<absl::Span<const JsonInput>> inputs = inputs_of_(assumed_);
  if (!inputs.ok()) {
    asked_status_ = inputs.status();
    return;
  }
  inputs_ = *inputs;
  columns_.resize(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    columns_[i].input = &inputs_[i];
    index_.emplace(inputs_[i].alias, i);
  }
}

Column* PredictEvents::FindColumn(absl::string_view alias) {
  if (next_column_ >= columns_.size()) next_column_ = 0;
  // Rows mostly have their keys in one order.
  if (columns_[next_column_].input->alias != alias) {
    const auto found = index_.find(alias);
    if (found == index_.end()) return nullptr;
    next_column_ = found->second;
  }
  return &columns_[next_column_++];
}

// --- Keys and brackets.

void PredictEvents::OnKey(absl::string_view key) {
  switch (place_) {
    case Place::kTop:
      return OnTopKey(key);
    case Place::kItem: {
      member_ = FindColumn(key);
      if (member_ == nullptr) {
        const std::string name(key.substr(0, limits_.max_shown_bytes));
        return RowProblem(At(absl::StrCat("Failed to process element: ", rows_, " key: ", name,
                                          " of 'instances' list. Error: INVALID_ARGUMENT: JSON "
                                          "object: does not have named input: ",
                                          name)));
      }
      if (member_->last_row == rows_) {
        member_ = nullptr;  // the first of equal keys counts
      } else {
        member_->last_row = rows_;
        ++item_keys_;
      }
      return;
    }
    case Place::kInputs:
      member_ = FindColumn(key);
      if (member_ != nullptr && member_->has_shape) member_ = nullptr;
      return;
    case Place::kUndecided:
      if (base64_seen_ == 0 && key == "b64") {
        base64_seen_ = 1;
        return;
      }
      Decide();
      return OnKey(key);
    case Place::kLeafObject:
      may_be_base64_ = base64_seen_ == 0 && key == "b64";
      base64_seen_ = 1;
      return;
    default:
      return;
  }
}

void PredictEvents::OnTopKey(absl::string_view key) {
  top_key_ = TopKey::kOther;
  if (key == "signature_name" && !has_signature_) {
    top_key_ = TopKey::kSignature;
  } else if (key == "instances" && !has_instances_) {
    has_instances_ = true;
    if (has_inputs_) return;
    top_key_ = TopKey::kInstances;
  } else if (key == "inputs" && !has_inputs_) {
    has_inputs_ = true;
    if (has_instances_) return;
    top_key_ = TopKey::kInputs;
  }
  if (top_key_ != TopKey::kInstances && top_key_ != TopKey::kInputs) return;
  FindInputs();
  // Without inputs there is an error to be reported, whatever the data is.
  if (columns_.empty()) top_key_ = TopKey::kOther;
}

void PredictEvents::OnStartObject() {
  switch (place_) {
    case Place::kRoot:
      root_is_object_ = true;
      place_ = Place::kTop;
      return;
    case Place::kTop:
      if (top_key_ == TopKey::kSignature) {
        has_signature_ = true;
        signature_is_string_ = false;
      }
      if (top_key_ != TopKey::kInputs) return SkipTo(depth_ - 1, Place::kTop);
      [[fallthrough]];
    case Place::kItems:
      undecided_in_ = place_;
      place_ = Place::kUndecided;
      object_at_ = position();
      base64_seen_ = 0;
      return;
    case Place::kUndecided:
      Decide();
      return OnStartObject();
    case Place::kItem:
    case Place::kInputs:
      if (!StartValue()) return SkipTo(depth_ - 1, place_);
      return StartLeafObject();
    case Place::kTensor:
      return StartLeafObject();
    case Place::kLeafObject:
      may_be_base64_ = false;
      return SkipTo(depth_ - 1, Place::kLeafObject);
    case Place::kSkip:
      return;
  }
}

void PredictEvents::OnEndObject() {
  switch (place_) {
    case Place::kItem:
      return EndItem();
    case Place::kInputs:
      place_ = Place::kTop;
      return;
    case Place::kUndecided:
      return EndUndecided();
    case Place::kLeafObject:
      place_ = Place::kTensor;
      return EndLeafObject(may_be_base64_ && base64_seen_ == 2, object_at_);
    default:
      return;
  }
}

void PredictEvents::OnStartArray() {
  switch (place_) {
    case Place::kRoot:
      return SkipTo(0, Place::kRoot);
    case Place::kTop:
      if (top_key_ == TopKey::kInstances) {
        instances_are_list_ = true;
        place_ = Place::kItems;
        return;
      }
      if (top_key_ == TopKey::kSignature) {
        has_signature_ = true;
        signature_is_string_ = false;
      }
      if (top_key_ != TopKey::kInputs || !StartValue()) return SkipTo(depth_ - 1, Place::kTop);
      return StartList();
    case Place::kItems:
      if (StartItemValue()) StartList();
      return;
    case Place::kItem:
    case Place::kInputs:
      if (!StartValue()) return SkipTo(depth_ - 1, place_);
      return StartList();
    case Place::kTensor:
      return StartList();
    case Place::kUndecided:
      Decide();
      return OnStartArray();
    case Place::kLeafObject:
      may_be_base64_ = false;
      return SkipTo(depth_ - 1, Place::kLeafObject);
    case Place::kSkip:
      return;
  }
}

void PredictEvents::OnEndArray(int64_t size) {
  if (place_ == Place::kTensor) return EndList(size);
  if (place_ == Place::kItems) place_ = Place::kTop;
}

// --- Values that are no lists and no objects.

bool PredictEvents::OnNumber(const JsonNumber& number) {
  const Leaf leaf = {.kind = Leaf::Kind::kNumber, .number = &number, .text = {}};
  if (place_ == Place::kTensor) {
    if (LeafFits(&leaf, kNowhere) && AddNumber(number)) taken_.back() += TakePlainNumbers();
    return ok();
  }
  if (!OnLeaf(leaf)) return false;
  // A row that was one number: so are the ones that follow it.
  if (place_ == Place::kItems && columns_[0].has_shape && columns_[0].dims.empty()) {
    column_ = &columns_[0];
    rows_ += TakePlainNumbers();
  }
  return true;
}

bool PredictEvents::OnLeaf(const Leaf& leaf) {
  switch (place_) {
    case Place::kRoot:
    case Place::kSkip:
      break;
    case Place::kTop:
      OnTopLeaf(leaf);
      break;
    case Place::kItems:
      if (StartItemValue()) AddLeaf(leaf);
      break;
    case Place::kItem:
    case Place::kInputs:
      if (StartValue()) AddLeaf(leaf);
      break;
    case Place::kTensor:
      AddLeaf(leaf);
      break;
    case Place::kUndecided:
      // The value of the key "b64", which was seen.
      if (leaf.kind == Leaf::Kind::kString && base64_seen_ == 1) {
        base64_seen_ = 2;
        base64_.assign(leaf.text.data(), leaf.text.size());
        break;
      }
      Decide();
      return OnLeaf(leaf);
    case Place::kLeafObject:
      if (leaf.kind != Leaf::Kind::kString) may_be_base64_ = false;
      if (!may_be_base64_) break;
      base64_seen_ = 2;
      base64_.assign(leaf.text.data(), leaf.text.size());
      break;
  }
  return ok();
}

void PredictEvents::OnTopLeaf(const Leaf& leaf) {
  if (top_key_ == TopKey::kSignature) {
    has_signature_ = true;
    signature_is_string_ = leaf.kind == Leaf::Kind::kString;
    signature_name_.assign(leaf.text.data(), leaf.text.size());
  } else if (top_key_ == TopKey::kInputs && StartValue()) {
    AddLeaf(leaf);
  }
}

// --- Rows.

// A value that is no object is an item of "instances".
bool PredictEvents::StartItemValue() {
  if (rows_kind_ == Rows::kUnknown) {
    if (columns_.size() > 1) {
      RowProblem(
          At("instances is a plain list, but expecting list of objects as multiple input "
             "tensors required as per tensorinfo_map"));
      return false;
    }
    rows_kind_ = Rows::kValues;
  }
  if (rows_kind_ == Rows::kObjects) {
    RowProblem(At(absl::StrCat("Expecting object but got list at item ", rows_, " of input list")));
    return false;
  }
  member_ = &columns_[0];
  return StartValue();
}

void PredictEvents::StartItem() {
  if (rows_kind_ == Rows::kValues) {
    return RowProblem(
        At(absl::StrCat("Expecting value/list but got object at item ", rows_, " of input list")));
  }
  rows_kind_ = Rows::kObjects;
  place_ = Place::kItem;
  item_at_ = object_at_;
  item_keys_ = 0;
}

void PredictEvents::EndItem() {
  if (item_keys_ != static_cast<int64_t>(columns_.size())) {
    const std::string keys = absl::StrJoin(
        inputs_, ",", [](std::string* out, const JsonInput& input) { out->append(input.alias); });
    return RowProblem(At(
        absl::StrCat("Failed to process element: ", rows_, " of 'instances' list. JSON object: "),
        item_at_, absl::StrCat(" keys must be equal to: ", keys)));
  }
  ++rows_;
  place_ = Place::kItems;
}

// The first mistake in the rows: nothing of them counts any more.
void PredictEvents::RowProblem(Problem problem) {
  MR_DCHECK(row_problem_ == nullptr, "rows are skipped behind a mistake");
  row_problem_ = std::make_unique<Problem>(std::move(problem));
  SkipTo(1, Place::kTop);
}

void PredictEvents::EndRowValue() {
  Column& column = *column_;
  const int64_t size = column.size - value_begin_;
  if (problem_ == nullptr) {
    if (!column.has_shape) {
      column.has_shape = true;
      column.dims = dims_;
      column.row_size = size;
    } else if (column.row_size != size) {
      Note(At(absl::StrCat("Expecting tensor size: ", column.row_size, " but got: ", size)));
    } else if (column.dims != dims_) {
      Note(At(absl::StrCat("Expecting shape ", ShapeText(column.dims),
                           " but got: ", ShapeText(dims_))));
    }
  }
  if (problem_ != nullptr) {
    const std::string key =
        value_in_ == Place::kItem ? absl::StrCat(" key: ", column.input->alias) : std::string();
    problem_->before =
        absl::StrCat("Failed to process element: ", rows_, key,
                     " of 'instances' list. Error: ", absl::StatusCodeToString(problem_->code),
                     ": ", problem_->before);
    problem_->code = absl::StatusCode::kInvalidArgument;
    return RowProblem(*std::move(problem_));
  }
  if (value_in_ == Place::kItems) ++rows_;
}

// --- Objects that may be {"b64": "..."}.

// It is none: what was read of it is read again, as a member.
void PredictEvents::Decide() {
  const int seen = base64_seen_;
  if (undecided_in_ == Place::kItems) {
    StartItem();
  } else {
    place_ = Place::kInputs;
  }
  if (seen >= 1) OnKey("b64");
  if (seen == 2) {
    const std::string text = std::move(base64_);
    OnLeaf({.kind = Leaf::Kind::kString, .text = text});
  }
}

void PredictEvents::EndUndecided() {
  if (base64_seen_ != 2) {
    Decide();
    if (place_ != Place::kSkip) OnEndObject();
    return;
  }
  place_ = undecided_in_;
  const bool starts = place_ == Place::kItems ? StartItemValue() : StartValue();
  if (starts) EndLeafObject(true, object_at_);
}

// --- One value of a tensor.

// False: the value is nobody's.
bool PredictEvents::StartValue() {
  if (place_ == Place::kTop) {
    if (columns_.size() > 1) {
      columnar_problem_ = std::make_unique<Problem>(
          At("inputs is a plain value/list, but expecting an object as multiple input tensors "
             "required as per tensorinfo_map"));
      return false;
    }
    member_ = &columns_[0];
  }
  if (member_ == nullptr) return false;
  column_ = member_;
  value_in_ = place_;
  place_ = Place::kTensor;
  level_ = 0;
  rank_ = -1;
  dims_.clear();
  value_begin_ = column_->size;
  problem_.reset();
  return true;
}

void PredictEvents::StartList() {
  const size_t at = position();
  if (problem_ == nullptr && rank_ >= 0 && level_ >= rank_) {
    Note(At(absl::StrCat("Encountered list at unexpected level: ", level_, " expected < ", rank_)));
  }
  list_at_.push_back(at);
  taken_.push_back(0);
  if (rank_ < 0) dims_.push_back(-1);
  ++level_;
}

void PredictEvents::EndList(int64_t size) {
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
      problem_ = std::make_unique<Problem>(
          Problem{.position = at,
                  .before = absl::StrCat("Encountered list at unexpected size: ", size,
                                         " at level: ", level_, " expected size: ", expected)});
    }
  }
  if (level_ == 0) EndValue();
}

void PredictEvents::StartLeafObject() {
  place_ = Place::kLeafObject;
  object_at_ = position();
  base64_seen_ = 0;
  may_be_base64_ = false;
}

void PredictEvents::EndLeafObject(bool is_base64, size_t begin) {
  if (LeafFits(nullptr, begin)) {
    if (column_->input->dtype != DT_STRING) {
      Note(At("JSON Value: ", begin,
              absl::StrCat(" Type: Object is not of expected type: ",
                           DTypeName(column_->input->dtype))));
    } else if (!is_base64) {
      Note(At("JSON Value: ", begin, " not formatted correctly for base64 data"));
    } else {
      std::string text;
      if (absl::Base64Unescape(base64_, &text)) {
        AddString(std::move(text));
      } else {
        Note(At("Unable to base64 decode"));
      }
    }
  }
  if (level_ == 0) EndValue();
}

// Is an element wanted here? It is `leaf`, or the object at `object_at`.
bool PredictEvents::LeafFits(const Leaf* leaf, size_t object_at) {
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

void PredictEvents::AddLeaf(const Leaf& leaf) {
  if (LeafFits(&leaf, kNowhere)) {
    const DType dtype = column_->input->dtype;
    if (leaf.kind == Leaf::Kind::kNumber) {
      AddNumber(*leaf.number);
    } else if (leaf.kind == Leaf::Kind::kString && dtype == DT_STRING) {
      AddString(std::string(leaf.text));
    } else if (leaf.kind == Leaf::Kind::kBool && dtype == DT_BOOL) {
      if (Room(1))
        column_->values.mutable_raw<bool>()[static_cast<size_t>(column_->size++)] = leaf.truth;
    } else {
      TypeProblem(leaf);
    }
  }
  if (level_ == 0) EndValue();
}

// False: it is not the dtype's, or there is no room.
bool PredictEvents::AddNumber(const JsonNumber& number) {
  Column& column = *column_;
  const DType dtype = column.input->dtype;
  const bool added = ForNumbersOf(dtype, [&]<typename T>() {
    T value{};
    if (!Convert(number, &value)) return false;
    if (!Room(sizeof(T))) return false;
    static_cast<T*>(column.values.mutable_raw_data())[column.size++] = value;
    return true;
  });
  if (added || !ok()) return added;
  TypeProblem({.kind = Leaf::Kind::kNumber, .number = &number, .text = {}});
  return false;
}

bool PredictEvents::AddString(std::string text) {
  if (!Room(static_cast<int64_t>(sizeof(std::string) + text.size()))) return false;
  column_->values.mutable_raw<std::string>()[static_cast<size_t>(column_->size++)] =
      std::move(text);
  return true;
}

// The reader stands behind a number that was added: takes the plain numbers that follow it in the
// list, and says how many. The reader goes on behind them, at a comma or at the list's end.
int64_t PredictEvents::TakePlainNumbers() {
  Column& column = *column_;
  int64_t taken = 0;
  ForNumbersOf(column.input->dtype, [&]<typename T>() {
    T* out = static_cast<T*>(column.values.mutable_raw_data()) + column.size;
    const int64_t room =
        std::min({column.values.num_elements() - column.size, limits_.max_elements - elements_,
                  (limits_.max_bytes - used_bytes_) / static_cast<int64_t>(sizeof(T))});
    taken = ReadPlainNumbers(&bytes_->src_, bytes_->end_, out, room);
    used_bytes_ += taken * static_cast<int64_t>(sizeof(T));
    return true;
  });
  column.size += taken;
  elements_ += taken;
  return taken;
}

void PredictEvents::EndValue() {
  place_ = value_in_;
  if (value_in_ == Place::kItems || value_in_ == Place::kItem) return EndRowValue();
  column_->has_shape = true;
  column_->dims = dims_;
  column_->problem = std::move(problem_);
}

// Makes room for one more element, of `bytes` bytes with what it refers to.
bool PredictEvents::Room(int64_t bytes) {
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
  return column_->size < column_->values.num_elements() || Grow();
}

bool PredictEvents::Grow() {
  Column& column = *column_;
  const int64_t capacity = column.values.num_elements();
  int64_t wanted = 2 * capacity;
  if (capacity == 0) {
    // A number has some 8 bytes of text, or more. A string's object is four times as large.
    const auto left = static_cast<int64_t>(body_.size() - std::min(position(), body_.size()));
    const int64_t share = left / static_cast<int64_t>(columns_.size());
    wanted = std::max<int64_t>(16, share / (HasNumbers(column.input->dtype) ? 8 : 32));
  }
  wanted = std::min(wanted, column.size + (limits_.max_elements - elements_) + 1);
  StatusOr<Shape> shape = Shape::Make({wanted});
  StatusOr<Tensor> larger =
      shape.ok() ? Tensor::Allocate(column.input->dtype, *shape) : StatusOr<Tensor>(shape.status());
  if (!larger.ok()) {
    Stop(larger.status());
    return false;
  }
  if (column.size > 0) {
    if (column.input->dtype == DT_STRING) {
      absl::Span<std::string> from = column.values.mutable_raw<std::string>();
      std::move(from.begin(), from.begin() + column.size,
                larger->mutable_raw<std::string>().begin());
    } else {
      std::memcpy(larger->mutable_raw_data(), column.values.raw_data(),
                  static_cast<size_t>(column.size) * DTypeSize(column.input->dtype));
    }
  }
  column.values = *std::move(larger);
  return true;
}

void PredictEvents::TypeProblem(const Leaf& leaf) {
  const DType dtype = column_->input->dtype;
  const std::string shown = leaf.Shown(limits_.max_shown_bytes);
  if (dtype != DT_STRING && dtype != DT_BOOL && !HasNumbers(dtype)) {
    Problem problem =
        At(absl::StrCat("Conversion of JSON Value: ", shown, " to type: ", DTypeName(dtype)));
    problem.code = absl::StatusCode::kUnimplemented;
    return Note(std::move(problem));
  }
  Note(At(absl::StrCat("JSON Value: ", shown, " Type: ", leaf.TypeName(),
                       " is not of expected type: ", DTypeName(dtype))));
}

// The value's first mistake.
void PredictEvents::Note(Problem problem) {
  if (problem_ == nullptr) problem_ = std::make_unique<Problem>(std::move(problem));
}

// --- The end.

// What is checked before the data, in TensorFlow Serving's order, and the signature.
Status PredictEvents::CheckTop() const {
  if (!root_is_object_) return OfBody("Is not object");
  if (!signature_is_string_) {
    return InvalidArgument("JSON Value: ", ShownJson(body_, 0, limits_.max_shown_bytes),
                           " not formatted correctly. 'signature_name' key must be a string "
                           "value.");
  }
  return absl::OkStatus();
}

StatusOr<JsonPredictRequest> PredictEvents::Finish(bool* again) {
  *again = false;
  MR_RETURN_IF_ERROR(CheckTop());
  FindInputs();  // unless the data asked
  if (assumed_ != signature_name_) {
    *again = true;
    return JsonPredictRequest();
  }
  MR_RETURN_IF_ERROR(asked_status_);
  if (inputs_.empty()) {
    return InvalidArgument("Failed to get input map for signature: ",
                           signature_name_.empty() ? "DEFAULT" : signature_name_);
  }
  if (has_instances_ && has_inputs_) {
    return OfBody(
        "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist ");
  }
  if (has_instances_) return FinishRows();
  if (has_inputs_) return FinishColumns();
  return InvalidArgument("Missing 'inputs' or 'instances' key");
}

StatusOr<JsonPredictRequest> PredictEvents::FinishRows() {
  if (!instances_are_list_) return OfBody("Expecting 'instances' to be an list/array");
  if (row_problem_ != nullptr) return StatusOf(*row_problem_, body_, limits_);
  if (rows_ == 0) return OfBody("No values in 'instances' array");
  JsonPredictRequest request;
  request.signature_name = std::move(signature_name_);
  request.form = JsonForm::kRow;
  for (Column& column : columns_) {
    Dims dims = {rows_};
    dims.insert(dims.end(), column.dims.begin(), column.dims.end());
    MR_ASSIGN_OR_RETURN(Tensor tensor, TensorOf(&column, dims));
    request.inputs.push_back({column.input->alias, std::move(tensor)});
  }
  return request;
}

StatusOr<JsonPredictRequest> PredictEvents::FinishColumns() {
  if (columnar_problem_ != nullptr) return StatusOf(*columnar_problem_, body_, limits_);
  JsonPredictRequest request;
  request.signature_name = std::move(signature_name_);
  request.form = JsonForm::kColumnar;
  for (Column& column : columns_) {
    if (!column.has_shape) {
      return InvalidArgument("Missing named input: ", column.input->alias, " in 'inputs' object.");
    }
    if (column.problem != nullptr) return StatusOf(*column.problem, body_, limits_);
    MR_ASSIGN_OR_RETURN(Tensor tensor, TensorOf(&column, column.dims));
    request.inputs.push_back({column.input->alias, std::move(tensor)});
  }
  return request;
}

StatusOr<Tensor> PredictEvents::TensorOf(Column* column, absl::Span<const int64_t> dims) const {
  MR_ASSIGN_OR_RETURN(Shape shape, Shape::Make(dims));
  MR_DCHECK(shape.num_elements() == column->size, "lists of equal lengths fill a shape");
  if (column->size == 0) return Tensor::Allocate(column->input->dtype, shape);
  return column->values.Rows(0, column->size).Reshaped(shape);
}

}  // namespace

StatusOr<JsonPredictRequest> ReadPredictRequest(absl::string_view text,
                                                const JsonInputsOf& inputs_of,
                                                const JsonLimits& limits) {
  MR_RETURN_IF_ERROR(CheckJsonSize(text, limits));
  const JsonBody body(text);
  std::string signature;
  for (int pass = 0;; ++pass) {
    rapidjson::MemoryStream bytes(body.text().data(), body.text().size());
    PredictEvents events(body.text(), &bytes, inputs_of, limits, signature);
    MR_RETURN_IF_ERROR(ScanJson(bytes, &events));
    bool again = false;
    StatusOr<JsonPredictRequest> request = events.Finish(&again);
    if (!again) return request;
    MR_DCHECK(pass == 0, "the second pass knows the signature");
    if (pass > 0) return Internal("JSON request: its signature changed while it was read");
    signature = events.signature_name();
  }
}

}  // namespace millrace
