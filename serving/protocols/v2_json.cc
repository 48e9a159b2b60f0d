// SPDX-License-Identifier: Apache-2.0
#include "serving/protocols/v2_json.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/utf8.h"
#include "proto/inference/grpc_service.pb.h"
#include "rapidjson/memorystream.h"
#include "rapidjson/rapidjson.h"
#include "serving/protocols/v2_tensors.h"
#include "serving/rest/json_column.h"

namespace millrace {
namespace {

using Leaf = JsonLeaf;

// Of a request: an empty object of three bytes costs some hundred here.
constexpr size_t kMaxTensors = 10'000;
constexpr size_t kMaxShown = 64;

std::string ShapeText(const JsonDims& dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ","), "]");
}

// An input, as far as it was read.
struct ReadInput {
  std::string name;
  bool has_name = false, has_datatype = false, has_shape = false;
  DType dtype = DT_INVALID;
  JsonDims shape;
  std::optional<size_t> data_at;  // read later: its datatype was not known
  bool has_data = false;
  JsonColumn data;
  JsonDims data_dims;
  std::optional<uint64_t> binary_bytes;
};

struct ReadOutput {
  std::string name;
  bool has_name = false;
  std::optional<bool> binary;
};

// The handler of the reader's events. The first mistake stops it.
class InferEvents {
 public:
  InferEvents(absl::string_view body, rapidjson::MemoryStream* bytes, const JsonLimits& limits)
      : body_(body), bytes_(bytes), limits_(limits), values_(body, bytes, &limits) {}

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

  // After the last event.
  StatusOr<V2Infer> Finish(absl::string_view binary);

 private:
  // Where the next event belongs.
  enum class Place {
    kRoot,
    kTop,         // in the outermost object
    kInputs,      // in the list of "inputs"
    kInput,       // in an object of it
    kShape,       // in its shape
    kData,        // in a list of its data
    kLeafObject,  // in an object that stands for an element
    kOutputs,
    kOutput,
    kParameters,  // of the request, an input or an output
    kSkip,        // in what nobody reads
  };
  // What the last key asks for.
  enum class Wanted {
    kNothing,
    kId,
    kParameters,
    kInputs,
    kOutputs,
    kName,
    kShape,
    kDatatype,
    kData,
    kSignature,
    kBinaryOutput,   // binary_data_output, of the request
    kBinaryOutputs,  // binary_data, of an output
    kBinaryBytes,
  };

  bool ok() const { return stopped_.ok() && values_.stopped().ok(); }
  bool Deeper();
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
  template <typename... Args>
  void Refuse(const Args&... args) {
    if (stopped_.ok()) stopped_ = InvalidArgument(args...);
  }
  // "Input 'x'", "Input 3".
  std::string Where() const;

  void OnKey(absl::string_view key);
  Wanted WantedBy(absl::string_view key);
  void OnStartObject();
  void OnEndObject();
  void OnStartArray();
  void OnEndArray(int64_t size);
  bool OnNumber(const JsonNumber& number);
  bool OnLeaf(const Leaf& leaf);
  void OnWantedLeaf(const Leaf& leaf);
  void WrongType(const char* found);
  void StartData();
  void EndData();
  void ReserveData(ReadInput* input);
  void EndInput();
  Status CheckData(const ReadInput& input) const;
  StatusOr<Tensor> TensorOf(const ReadInput& input, absl::string_view* binary) const;

  ReadInput& input() { return inputs_[current_]; }

  const absl::string_view body_;
  rapidjson::MemoryStream* const bytes_;
  const JsonLimits& limits_;
  Status stopped_;
  JsonValueReader values_;

  Place place_ = Place::kRoot;
  int depth_ = 0;
  int skip_to_ = 0;
  Place after_skip_ = Place::kTop;
  Place parameters_in_ = Place::kTop;
  Wanted wanted_ = Wanted::kNothing;
  // Keys that an object had, one bit per Wanted: the outermost one, an item, parameters.
  uint32_t top_keys_ = 0, item_keys_ = 0, parameter_keys_ = 0;

  bool root_is_object_ = false, has_inputs_ = false;
  V2Infer request_;
  std::vector<ReadInput> inputs_;
  size_t current_ = 0;  // the input that is being read
  std::vector<ReadOutput> outputs_;

  // Of an object in a leaf's place, as in json_tensors.cc.
  size_t object_at_ = 0;
  int base64_seen_ = 0;
  bool may_be_base64_ = false;
  std::string base64_;
};

bool InferEvents::Deeper() {
  if (++depth_ <= limits_.max_depth) return true;
  Refuse("JSON Parse error: Lists and objects are nested deeper than ", limits_.max_depth,
         " at offset: ", bytes_->Tell());
  return false;
}

std::string InferEvents::Where() const {
  switch (place_ == Place::kParameters ? parameters_in_ : place_) {
    case Place::kInput:
    case Place::kShape:
    case Place::kData:
    case Place::kLeafObject:
      if (!inputs_[current_].has_name) return absl::StrCat("Input ", current_);
      return absl::StrCat("Input '", inputs_[current_].name.substr(0, kMaxShown), "'");
    case Place::kOutput:
      if (!outputs_.back().has_name) return absl::StrCat("Output ", outputs_.size() - 1);
      return absl::StrCat("Output '", outputs_.back().name.substr(0, kMaxShown), "'");
    default:
      return "Inference request";
  }
}

// --- Keys and brackets.

InferEvents::Wanted InferEvents::WantedBy(absl::string_view key) {
  switch (place_) {
    case Place::kTop:
      if (key == "id") return Wanted::kId;
      if (key == "parameters") return Wanted::kParameters;
      if (key == "inputs") return Wanted::kInputs;
      if (key == "outputs") return Wanted::kOutputs;
      return Wanted::kNothing;
    case Place::kInput:
      if (key == "shape") return Wanted::kShape;
      if (key == "datatype") return Wanted::kDatatype;
      if (key == "data") return Wanted::kData;
      [[fallthrough]];
    case Place::kOutput:
      if (key == "name") return Wanted::kName;
      if (key == "parameters") return Wanted::kParameters;
      return Wanted::kNothing;
    case Place::kParameters:
      if (parameters_in_ == Place::kTop) {
        if (key == kV2SignatureParameter) return Wanted::kSignature;
        if (key == "binary_data_output") return Wanted::kBinaryOutput;
        return Wanted::kNothing;
      }
      if (key == "shared_memory_region" || key == "classification") {
        stopped_ = Unimplemented(Where(), ": parameters must be ones of this server, got ", key);
        return Wanted::kNothing;
      }
      if (parameters_in_ == Place::kInput && key == "binary_data_size") {
        return Wanted::kBinaryBytes;
      }
      if (parameters_in_ == Place::kOutput && key == "binary_data") return Wanted::kBinaryOutputs;
      return Wanted::kNothing;
    default:
      return Wanted::kNothing;
  }
}

void InferEvents::OnKey(absl::string_view key) {
  if (place_ == Place::kSkip) return;
  if (place_ == Place::kLeafObject) {
    may_be_base64_ = base64_seen_ == 0 && key == "b64";
    base64_seen_ = 1;
    return;
  }
  wanted_ = WantedBy(key);
  if (wanted_ == Wanted::kNothing) return;
  uint32_t& keys = place_ == Place::kTop          ? top_keys_
                   : place_ == Place::kParameters ? parameter_keys_
                                                  : item_keys_;
  const uint32_t bit = uint32_t{1} << static_cast<int>(wanted_);
  if ((keys & bit) != 0) Refuse(Where(), ": '", key, "' must be there once, got it twice");
  keys |= bit;
}

void InferEvents::WrongType(const char* found) {
  static constexpr const char* kMust[] = {"",
                                          "'id' must be a string",
                                          "'parameters' must be an object",
                                          "'inputs' must be a list of objects",
                                          "'outputs' must be a list of objects",
                                          "'name' must be a string",
                                          "'shape' must be a list of numbers >= 0",
                                          "'datatype' must be a string",
                                          "'data' must be a list",
                                          "'signature_name' must be a string",
                                          "'binary_data_output' must be true or false",
                                          "'binary_data' must be true or false",
                                          "'binary_data_size' must be a number >= 0"};
  Refuse(Where(), ": ", kMust[static_cast<size_t>(wanted_)], ", got ", found);
}

void InferEvents::OnStartObject() {
  switch (place_) {
    case Place::kRoot:
      root_is_object_ = true;
      place_ = Place::kTop;
      return;
    case Place::kInputs:
      if (inputs_.size() >= kMaxTensors) {
        return Refuse("Inference request: inputs must be at most ", kMaxTensors, ", got more");
      }
      item_keys_ = 0;
      inputs_.emplace_back();
      current_ = inputs_.size() - 1;
      place_ = Place::kInput;
      return;
    case Place::kOutputs:
      if (outputs_.size() >= kMaxTensors) {
        return Refuse("Inference request: outputs must be at most ", kMaxTensors, ", got more");
      }
      item_keys_ = 0;
      outputs_.emplace_back();
      place_ = Place::kOutput;
      return;
    case Place::kTop:
    case Place::kInput:
    case Place::kOutput:
    case Place::kParameters:
      if (wanted_ == Wanted::kNothing) return SkipTo(depth_ - 1, place_);
      if (wanted_ != Wanted::kParameters) return WrongType("an object");
      parameter_keys_ = 0;
      parameters_in_ = place_;
      place_ = Place::kParameters;
      return;
    case Place::kShape:
      return WrongType("an object in it");
    case Place::kData:
      place_ = Place::kLeafObject;
      object_at_ = bytes_->Tell();
      base64_seen_ = 0;
      may_be_base64_ = false;
      return;
    case Place::kLeafObject:
      may_be_base64_ = false;
      return SkipTo(depth_ - 1, Place::kLeafObject);
    case Place::kSkip:
      return;
  }
}

void InferEvents::OnEndObject() {
  switch (place_) {
    case Place::kTop:
      place_ = Place::kRoot;
      return;
    case Place::kInput:
      EndInput();
      place_ = Place::kInputs;
      return;
    case Place::kOutput:
      if (!outputs_.back().has_name) Refuse(Where(), ": 'name' must be given, got none");
      place_ = Place::kOutputs;
      return;
    case Place::kParameters:
      place_ = parameters_in_;
      return;
    case Place::kLeafObject: {
      place_ = Place::kData;
      const bool is_base64 = may_be_base64_ && base64_seen_ == 2;
      values_.AddObject(object_at_, is_base64 ? &base64_ : nullptr);
      return;
    }
    default:
      return;
  }
}

void InferEvents::OnStartArray() {
  switch (place_) {
    case Place::kRoot:
      return SkipTo(0, Place::kRoot);
    case Place::kTop:
    case Place::kInput:
    case Place::kOutput:
    case Place::kParameters:
      if (wanted_ == Wanted::kNothing) return SkipTo(depth_ - 1, place_);
      if (wanted_ == Wanted::kInputs) {
        has_inputs_ = true;
        place_ = Place::kInputs;
      } else if (wanted_ == Wanted::kOutputs) {
        place_ = Place::kOutputs;
      } else if (wanted_ == Wanted::kShape) {
        input().has_shape = true;
        place_ = Place::kShape;
      } else if (wanted_ == Wanted::kData) {
        StartData();
      } else {
        WrongType("a list");
      }
      return;
    case Place::kInputs:
    case Place::kOutputs:
      return Refuse("Inference request: items of 'inputs' and 'outputs' must be objects, got a ",
                    "list");
    case Place::kShape:
      return WrongType("a list in it");
    case Place::kData:
      return values_.StartList();
    case Place::kLeafObject:
      may_be_base64_ = false;
      return SkipTo(depth_ - 1, Place::kLeafObject);
    case Place::kSkip:
      return;
  }
}

void InferEvents::OnEndArray(int64_t size) {
  if (place_ == Place::kData) {
    if (values_.EndList(size)) EndData();
  } else if (place_ == Place::kShape) {
    place_ = Place::kInput;
  } else if (place_ == Place::kInputs || place_ == Place::kOutputs) {
    place_ = Place::kTop;
  }
}

// --- Values that are no lists and no objects.

bool InferEvents::OnNumber(const JsonNumber& number) {
  if (place_ != Place::kData) return OnLeaf({.kind = Leaf::Kind::kNumber, .number = &number});
  values_.AddNumberOfList(number);
  return ok();
}

bool InferEvents::OnLeaf(const Leaf& leaf) {
  switch (place_) {
    case Place::kRoot:
    case Place::kSkip:
      break;
    case Place::kTop:
    case Place::kInput:
    case Place::kOutput:
    case Place::kParameters:
      OnWantedLeaf(leaf);
      break;
    case Place::kInputs:
    case Place::kOutputs:
      Refuse("Inference request: items of 'inputs' and 'outputs' must be objects, got ",
             leaf.TypeName());
      break;
    case Place::kShape: {
      JsonDims& shape = input().shape;
      const JsonNumber* const number = leaf.number;
      if (number == nullptr || number->is_decimal() || number->is_negative_integer() ||
          number->magnitude() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        WrongType(leaf.Shown(kMaxShown).c_str());
      } else if (shape.size() >= Shape::kMaxRank) {
        Refuse(Where(), ": 'shape' must have at most ", Shape::kMaxRank, " dimensions, got more");
      } else {
        shape.push_back(static_cast<int64_t>(number->magnitude()));
      }
      break;
    }
    case Place::kData:
      values_.AddLeaf(leaf);
      break;
    case Place::kLeafObject:
      if (leaf.kind != Leaf::Kind::kString) may_be_base64_ = false;
      if (!may_be_base64_) break;
      base64_seen_ = 2;
      base64_.assign(leaf.text.data(), leaf.text.size());
      break;
  }
  return ok();
}

void InferEvents::OnWantedLeaf(const Leaf& leaf) {
  const bool is_string = leaf.kind == Leaf::Kind::kString;
  const bool is_bool = leaf.kind == Leaf::Kind::kBool;
  switch (wanted_) {
    case Wanted::kNothing:
      return;
    case Wanted::kId:
    case Wanted::kParameters:
    case Wanted::kOutputs:
      // What need not be there may be null.
      if (leaf.kind == Leaf::Kind::kNull) return;
      if (wanted_ != Wanted::kId || !is_string) return WrongType(leaf.TypeName());
      request_.id = std::string(leaf.text);
      return;
    case Wanted::kInputs:
    case Wanted::kShape:
    case Wanted::kData:
      return WrongType(leaf.TypeName());
    case Wanted::kName: {
      if (!is_string) return WrongType(leaf.TypeName());
      std::string& name = place_ == Place::kInput ? input().name : outputs_.back().name;
      name = std::string(leaf.text);
      (place_ == Place::kInput ? input().has_name : outputs_.back().has_name) = true;
      return;
    }
    case Wanted::kDatatype: {
      if (!is_string) return WrongType(leaf.TypeName());
      const StatusOr<DType> dtype = DTypeOfV2(Where(), leaf.text);
      if (!dtype.ok()) {
        stopped_ = dtype.status();
        return;
      }
      input().dtype = *dtype;
      input().has_datatype = true;
      return;
    }
    case Wanted::kSignature:
      if (!is_string) return WrongType(leaf.TypeName());
      request_.signature_name = std::string(leaf.text);
      return;
    case Wanted::kBinaryOutput:
      if (!is_bool) return WrongType(leaf.TypeName());
      request_.raw_outputs = leaf.truth;
      return;
    case Wanted::kBinaryOutputs:
      if (!is_bool) return WrongType(leaf.TypeName());
      outputs_.back().binary = leaf.truth;
      return;
    case Wanted::kBinaryBytes:
      if (leaf.number == nullptr || leaf.number->is_decimal() ||
          leaf.number->is_negative_integer()) {
        return WrongType(leaf.Shown(kMaxShown).c_str());
      }
      input().binary_bytes = leaf.number->magnitude();
      return;
  }
}

// --- The data of an input.

void InferEvents::StartData() {
  ReadInput& in = input();
  in.has_data = true;
  if (!in.has_datatype) {
    in.data_at = bytes_->Tell();
    return SkipTo(depth_ - 1, Place::kInput);
  }
  if (!HasTypedV2Form(in.dtype)) {
    return Refuse(Where(), ": ", V2Datatype(in.dtype),
                  " has no form in JSON; send it as binary data (binary_data_size)");
  }
  in.data.dtype = in.dtype;
  ReserveData(&in);
  values_.Start(&in.data);
  values_.StartList();
  place_ = Place::kData;
}

// Room for the elements that the shape says, where the body may have so many: a number and its
// comma are two bytes.
void InferEvents::ReserveData(ReadInput* in) {
  if (!in->has_shape || in->dtype == DT_STRING) return;
  const StatusOr<Shape> shape = Shape::Make(in->shape);
  if (!shape.ok()) return;
  const int64_t elements = shape->num_elements();
  const auto left = static_cast<int64_t>(body_.size() - std::min(bytes_->Tell(), body_.size()));
  if (elements == 0 || elements > left / 2 + 1 || elements > limits_.max_elements) return;
  StatusOr<Tensor> room = Tensor::Allocate(in->dtype, Shape::Vector(static_cast<size_t>(elements)));
  if (!room.ok()) return;  // what is needed of it is asked for again
  in->data.values = *std::move(room);
  in->data.capacity = elements;
}

void InferEvents::EndData() {
  ReadInput& in = input();
  place_ = Place::kInput;
  in.data_dims = values_.dims();
  if (const auto problem = values_.TakeProblem()) {
    stopped_ = Prefixed(Where(), problem->ToStatus(body_, limits_));
    return;
  }
  if (in.has_shape) {
    const Status fits = CheckData(in);
    if (!fits.ok()) {
      stopped_ = fits;
      return;
    }
  }
  // Many small inputs must not keep the room of large ones.
  JsonColumn& data = in.data;
  if (data.size == 0) {
    data.values = Tensor();
  } else if (data.capacity > 2 * data.size) {
    StatusOr<Tensor> exact = data.values.Rows(0, data.size).Clone();
    if (!exact.ok()) {
      stopped_ = exact.status();
      return;
    }
    data.values = *std::move(exact);
  }
}

// Flat, or nested as the shape.
Status InferEvents::CheckData(const ReadInput& in) const {
  const std::string where = absl::StrCat("Input '", in.name.substr(0, kMaxShown), "'");
  MR_ASSIGN_OR_RETURN(const Shape shape, ShapeOfV2(where, in.shape));
  const bool is_flat = in.data_dims.size() == 1 && in.data_dims[0] == shape.num_elements();
  if (is_flat || in.data_dims == in.shape) return absl::OkStatus();
  return InvalidArgument(where, ": 'data' must be flat with ", shape.num_elements(),
                         " elements or nested as its shape ", shape.ToString(),
                         ", got a list of shape ", ShapeText(in.data_dims));
}

void InferEvents::EndInput() {
  const ReadInput& in = input();
  if (!in.has_name) return Refuse(Where(), ": 'name' must be given, got none");
  if (!in.has_datatype) return Refuse(Where(), ": 'datatype' must be given, got none");
  if (!in.has_shape) return Refuse(Where(), ": 'shape' must be given, got none");
  if (in.has_data == in.binary_bytes.has_value()) {
    Refuse(Where(), ": one of 'data' and the parameter 'binary_data_size' must be given, got ",
           in.has_data ? "both" : "none");
  }
}

// --- The end.

StatusOr<Tensor> InferEvents::TensorOf(const ReadInput& in, absl::string_view* binary) const {
  const std::string where = absl::StrCat("Input '", in.name.substr(0, kMaxShown), "'");
  MR_ASSIGN_OR_RETURN(const Shape shape, ShapeOfV2(where, in.shape));
  if (in.binary_bytes.has_value()) {
    if (*in.binary_bytes > binary->size()) {
      return InvalidArgument(where, ": 'binary_data_size' must be within the ", binary->size(),
                             " bytes that are left behind the JSON, got ", *in.binary_bytes,
                             "; the header Inference-Header-Content-Length says where they begin");
    }
    const absl::string_view raw = binary->substr(0, *in.binary_bytes);
    binary->remove_prefix(raw.size());
    return TensorOfRawV2(where, in.dtype, shape, raw);
  }
  MR_RETURN_IF_ERROR(CheckData(in));
  if (in.data.size == 0) return Tensor::Allocate(in.dtype, shape);
  return in.data.values.Rows(0, in.data.size).Reshaped(shape);
}

StatusOr<V2Infer> InferEvents::Finish(absl::string_view binary) {
  if (!root_is_object_) return InvalidArgument("Inference request: it must be an object");
  if (!has_inputs_) {
    return InvalidArgument("Inference request: 'inputs' must be given, got none");
  }
  // The data whose datatype followed it.
  for (current_ = 0; current_ < inputs_.size(); ++current_) {
    if (!input().data_at.has_value()) continue;
    bytes_->src_ = bytes_->begin_ + *input().data_at;
    place_ = Place::kInput;
    wanted_ = Wanted::kData;
    depth_ = 0;
    MR_RETURN_IF_ERROR(ScanJson(*bytes_, this));
  }
  std::set<absl::string_view> names;
  for (const ReadInput& in : inputs_) {
    if (!names.insert(in.name).second) {
      return InvalidArgument("Input '", in.name.substr(0, kMaxShown),
                             "': inputs must have different names, got it twice");
    }
    MR_ASSIGN_OR_RETURN(Tensor tensor, TensorOf(in, &binary));
    request_.inputs.push_back({in.name, std::move(tensor)});
  }
  if (!binary.empty()) {
    return InvalidArgument("Inference request: the inputs must take all bytes behind the JSON, ",
                           binary.size(), " are left");
  }
  for (const ReadOutput& out : outputs_) {
    request_.outputs.push_back(
        {.name = out.name, .raw = out.binary.value_or(request_.raw_outputs)});
  }
  return std::move(request_);
}

// --- Replies.

std::string Quoted(absl::string_view text) {
  // An escape has at most six bytes.
  return QuotedJson(text, 6 * text.size() + 2);
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

Status TooLarge(int64_t max_bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("Inference reply: it must have at most ", max_bytes, " bytes, got more"));
}

template <typename T>
Status AppendElements(const AliasedTensor& output, int64_t max_bytes, std::string* out) {
  const char* comma = "";
  for (const T& element : output.tensor.raw<T>()) {
    out->append(comma);
    comma = ",";
    if constexpr (std::is_same_v<T, std::string>) {
      if (!IsUtf8(element)) {
        return InvalidArgument("Output '", output.alias,
                               "': elements must be text to be in JSON, got other bytes; ask for ",
                               "binary_data");
      }
      out->append(Quoted(element));
    } else if constexpr (std::is_same_v<T, bool>) {
      out->append(element ? "true" : "false");
    } else if constexpr (std::is_floating_point_v<T>) {
      char text[kMaxJsonDecimal];
      out->append(text, WriteJsonDecimal(element, text));
    } else if constexpr (sizeof(T) == 1) {
      absl::StrAppend(out, static_cast<int>(element));
    } else {
      absl::StrAppend(out, element);
    }
    if (out->size() > static_cast<size_t>(max_bytes)) return TooLarge(max_bytes);
  }
  return absl::OkStatus();
}

Status AppendData(const AliasedTensor& output, int64_t max_bytes, std::string* out) {
  switch (output.tensor.dtype()) {
    case DT_BOOL:
      return AppendElements<bool>(output, max_bytes, out);
    case DT_INT8:
      return AppendElements<int8_t>(output, max_bytes, out);
    case DT_INT16:
      return AppendElements<int16_t>(output, max_bytes, out);
    case DT_INT32:
      return AppendElements<int32_t>(output, max_bytes, out);
    case DT_INT64:
      return AppendElements<int64_t>(output, max_bytes, out);
    case DT_UINT8:
      return AppendElements<uint8_t>(output, max_bytes, out);
    case DT_UINT16:
      return AppendElements<uint16_t>(output, max_bytes, out);
    case DT_UINT32:
      return AppendElements<uint32_t>(output, max_bytes, out);
    case DT_UINT64:
      return AppendElements<uint64_t>(output, max_bytes, out);
    case DT_FLOAT:
      return AppendElements<float>(output, max_bytes, out);
    case DT_DOUBLE:
      return AppendElements<double>(output, max_bytes, out);
    case DT_STRING:
      return AppendElements<std::string>(output, max_bytes, out);
    case DT_HALF:
    case DT_BFLOAT16:
      return InvalidArgument("Output '", output.alias, "': ", V2Datatype(output.tensor.dtype()),
                             " has no form in JSON; ask for binary_data");
    default:
      return Unimplemented("Output '", output.alias,
                           "': dtype must be one that the protocol has, got ",
                           DTypeName(output.tensor.dtype()));
  }
}

template <typename Tensors>
std::string TensorsJson(const Tensors& tensors) {
  return absl::StrCat("[",
                      absl::StrJoin(tensors, ",",
                                    [](std::string* out, const auto& tensor) {
                                      absl::StrAppend(out, "{\"name\":", Quoted(tensor.name()),
                                                      ",\"datatype\":", Quoted(tensor.datatype()),
                                                      ",\"shape\":[",
                                                      absl::StrJoin(tensor.shape(), ","), "]}");
                                    }),
                      "]");
}

template <typename Strings>
std::string StringsJson(const Strings& strings) {
  return absl::StrCat(
      "[",
      absl::StrJoin(strings, ",",
                    [](std::string* out, const auto& text) { out->append(Quoted(text)); }),
      "]");
}

}  // namespace

StatusOr<V2Infer> ReadV2Json(absl::string_view json, absl::string_view binary,
                             const JsonLimits& limits) {
  MR_RETURN_IF_ERROR(CheckJsonSize(json, limits));
  const JsonBody body(json);
  rapidjson::MemoryStream bytes(body.text().data(), body.text().size());
  InferEvents events(body.text(), &bytes, limits);
  MR_RETURN_IF_ERROR(ScanJson(bytes, &events));
  return events.Finish(binary);
}

StatusOr<V2JsonReply> WriteV2Json(absl::string_view model, int64_t version, const V2Infer& request,
                                  absl::Span<const AliasedTensor> outputs, int64_t max_bytes) {
  V2JsonReply reply;
  std::string& out = reply.body;
  std::string binary;
  absl::StrAppend(&out, "{\"model_name\":", Quoted(model), ",\"model_version\":\"", version, "\"");
  if (!request.id.empty()) absl::StrAppend(&out, ",\"id\":", Quoted(request.id));
  out.append(",\"outputs\":[");
  for (size_t i = 0; i < outputs.size(); ++i) {
    const AliasedTensor& output = outputs[i];
    const bool raw = request.outputs.empty() ? request.raw_outputs : request.outputs[i].raw;
    absl::StrAppend(&out, i == 0 ? "" : ",", "{\"name\":", Quoted(output.alias), ",\"datatype\":\"",
                    V2Datatype(output.tensor.dtype()), "\",\"shape\":[",
                    absl::StrJoin(output.tensor.shape().dims(), ","), "],");
    if (raw) {
      MR_ASSIGN_OR_RETURN(const std::string elements,
                          RawV2(absl::StrCat("Output '", output.alias, "'"), output.tensor));
      absl::StrAppend(&out, "\"parameters\":{\"binary_data_size\":", elements.size(), "}}");
      binary.append(elements);
    } else {
      out.append("\"data\":[");
      MR_RETURN_IF_ERROR(AppendData(output, max_bytes, &out));
      out.append("]}");
    }
    if (out.size() + binary.size() > static_cast<size_t>(max_bytes)) return TooLarge(max_bytes);
  }
  out.append("]}");
  reply.json_bytes = out.size();
  out.append(binary);
  return reply;
}

std::string V2MetadataJson(const inference::ModelMetadataResponse& metadata) {
  return absl::StrCat(
      "{\"name\":", Quoted(metadata.name()), ",\"versions\":", StringsJson(metadata.versions()),
      ",\"platform\":", Quoted(metadata.platform()), ",\"inputs\":", TensorsJson(metadata.inputs()),
      ",\"outputs\":", TensorsJson(metadata.outputs()), "}");
}

std::string V2MetadataJson(const inference::ServerMetadataResponse& metadata) {
  return absl::StrCat("{\"name\":", Quoted(metadata.name()),
                      ",\"version\":", Quoted(metadata.version()),
                      ",\"extensions\":", StringsJson(metadata.extensions()), "}");
}

}  // namespace millrace
