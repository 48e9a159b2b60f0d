// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/json_tensors.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dcheck.h"
#include "serving/rest/json_column.h"

namespace millrace {
namespace {

using Leaf = JsonLeaf;
using Problem = JsonProblem;

// An input of the signature: its tensor, and what is known of its values.
struct Column {
  const JsonInput* input = nullptr;
  JsonColumn elements;
  // In rows: the shape and the number of elements of one row, once there is one; the last row that
  // had a value. In columns: the shape.
  bool has_shape = false;
  JsonDims dims;
  int64_t row_size = 0;
  int64_t last_row = -1;
  std::unique_ptr<Problem> problem;  // in columns
};

std::string ShapeText(const JsonDims& dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ","), "]");
}

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
        values_(body, bytes, &limits),
        assumed_(std::move(assumed)) {}

  bool Null() { return OnLeaf({.kind = Leaf::Kind::kNull}); }
  bool Bool(bool value) { return OnLeaf({.kind = Leaf::Kind::kBool, .truth = value}); }
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
  Status stopped() const { return stopped_.ok() ? values_.stopped() : stopped_; }

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

  bool ok() const { return stopped_.ok() && values_.stopped().ok(); }
  size_t position() const { return bytes_->Tell(); }
  bool Deeper();
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
  void StartLeafObject();
  void EndLeafObject();
  void AddLeaf(const Leaf& leaf) {
    if (values_.AddLeaf(leaf)) EndValue();
  }
  void EndValue();

  Problem At(std::string before, size_t value_at = kNoJsonValue, std::string after = "") const {
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
  static StatusOr<Tensor> TensorOf(const JsonColumn& column, absl::Span<const int64_t> dims);

  const absl::string_view body_;
  rapidjson::MemoryStream* const bytes_;
  const JsonInputsOf& inputs_of_;
  const JsonLimits& limits_;
  Status stopped_;
  JsonValueReader values_;

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
  Column* column_ = nullptr;  // whose the value is that is being read
  Place value_in_ = Place::kTop;
};

bool PredictEvents::Deeper() {
  if (++depth_ <= limits_.max_depth) return true;
  stopped_ = InvalidArgument("JSON Parse error: Lists and objects are nested deeper than ",
                             limits_.max_depth, " at offset: ", position());
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
  values_.set_num_columns(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    columns_[i].input = &inputs_[i];
    columns_[i].elements.dtype = inputs_[i].dtype;
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
      return EndLeafObject();
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
      return values_.StartList();
    case Place::kItems:
      if (StartItemValue()) values_.StartList();
      return;
    case Place::kItem:
    case Place::kInputs:
      if (!StartValue()) return SkipTo(depth_ - 1, place_);
      return values_.StartList();
    case Place::kTensor:
      return values_.StartList();
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
  if (place_ == Place::kTensor) {
    if (values_.EndList(size)) EndValue();
  } else if (place_ == Place::kItems) {
    place_ = Place::kTop;
  }
}

// --- Values that are no lists and no objects.

bool PredictEvents::OnNumber(const JsonNumber& number) {
  if (place_ == Place::kTensor) {
    values_.AddNumberOfList(number);
    return ok();
  }
  if (!OnLeaf({.kind = Leaf::Kind::kNumber, .number = &number})) return false;
  // A row that was one number: so are the ones that follow it.
  if (place_ == Place::kItems && columns_[0].has_shape && columns_[0].dims.empty()) {
    rows_ += values_.TakePlainNumbers(&columns_[0].elements);
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
  std::unique_ptr<Problem> problem = values_.TakeProblem();
  if (problem == nullptr && !column.has_shape) {
    column.has_shape = true;
    column.dims = values_.dims();
    column.row_size = values_.size();
  } else if (problem == nullptr && column.row_size != values_.size()) {
    problem = std::make_unique<Problem>(
        At(absl::StrCat("Expecting tensor size: ", column.row_size, " but got: ", values_.size())));
  } else if (problem == nullptr && column.dims != values_.dims()) {
    problem = std::make_unique<Problem>(At(absl::StrCat("Expecting shape ", ShapeText(column.dims),
                                                        " but got: ", ShapeText(values_.dims()))));
  }
  if (problem != nullptr) {
    const std::string key =
        value_in_ == Place::kItem ? absl::StrCat(" key: ", column.input->alias) : std::string();
    problem->before =
        absl::StrCat("Failed to process element: ", rows_, key,
                     " of 'instances' list. Error: ", absl::StatusCodeToString(problem->code), ": ",
                     problem->before);
    problem->code = absl::StatusCode::kInvalidArgument;
    return RowProblem(*std::move(problem));
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
  if (starts && values_.AddObject(object_at_, &base64_)) EndValue();
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
  values_.Start(&column_->elements);
  return true;
}

void PredictEvents::StartLeafObject() {
  place_ = Place::kLeafObject;
  object_at_ = position();
  base64_seen_ = 0;
  may_be_base64_ = false;
}

void PredictEvents::EndLeafObject() {
  place_ = Place::kTensor;
  const bool is_base64 = may_be_base64_ && base64_seen_ == 2;
  if (values_.AddObject(object_at_, is_base64 ? &base64_ : nullptr)) EndValue();
}

void PredictEvents::EndValue() {
  place_ = value_in_;
  if (value_in_ == Place::kItems || value_in_ == Place::kItem) return EndRowValue();
  column_->has_shape = true;
  column_->dims = values_.dims();
  column_->problem = values_.TakeProblem();
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
  if (row_problem_ != nullptr) return row_problem_->ToStatus(body_, limits_);
  if (rows_ == 0) return OfBody("No values in 'instances' array");
  JsonPredictRequest request;
  request.signature_name = std::move(signature_name_);
  request.form = JsonForm::kRow;
  for (Column& column : columns_) {
    JsonDims dims = {rows_};
    dims.insert(dims.end(), column.dims.begin(), column.dims.end());
    MR_ASSIGN_OR_RETURN(Tensor tensor, TensorOf(column.elements, dims));
    request.inputs.push_back({column.input->alias, std::move(tensor)});
  }
  return request;
}

StatusOr<JsonPredictRequest> PredictEvents::FinishColumns() {
  if (columnar_problem_ != nullptr) return columnar_problem_->ToStatus(body_, limits_);
  JsonPredictRequest request;
  request.signature_name = std::move(signature_name_);
  request.form = JsonForm::kColumnar;
  for (Column& column : columns_) {
    if (!column.has_shape) {
      return InvalidArgument("Missing named input: ", column.input->alias, " in 'inputs' object.");
    }
    if (column.problem != nullptr) return column.problem->ToStatus(body_, limits_);
    MR_ASSIGN_OR_RETURN(Tensor tensor, TensorOf(column.elements, column.dims));
    request.inputs.push_back({column.input->alias, std::move(tensor)});
  }
  return request;
}

StatusOr<Tensor> PredictEvents::TensorOf(const JsonColumn& column, absl::Span<const int64_t> dims) {
  MR_ASSIGN_OR_RETURN(Shape shape, Shape::Make(dims));
  MR_DCHECK(shape.num_elements() == column.size, "lists of equal lengths fill a shape");
  if (column.size == 0) return Tensor::Allocate(column.dtype, shape);
  return column.values.Rows(0, column.size).Reshaped(shape);
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
