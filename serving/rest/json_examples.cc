// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/json_examples.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/escaping.h"
#include "proto/feature.pb.h"

namespace millrace {
namespace {

// What protobuf's maps and lists take in memory, reckoned high: an example with its map, and a
// feature with its entry and its list.
constexpr int64_t kExampleBytes = 320, kFeatureBytes = 180;

using tensorflow::Example;
using tensorflow::Feature;

const char* KindName(Feature::KindCase kind) {
  switch (kind) {
    case Feature::kBytesList:
      return "bytes";
    case Feature::kFloatList:
      return "float";
    case Feature::kInt64List:
      return "int64";
    case Feature::KIND_NOT_SET:
      break;
  }
  return "UNKNOWN";
}

// The handler of the reader's events.
class ExamplesEvents {
 public:
  ExamplesEvents(absl::string_view body, rapidjson::MemoryStream* bytes, const JsonLimits& limits)
      : body_(body), bytes_(bytes), limits_(limits) {}

  bool Null() { return OnOther("Null"); }
  bool Bool(bool value) {
    if (!Wants(value ? "True" : "False") || !HasKind(Feature::kInt64List)) return ok();
    feature_->mutable_int64_list()->add_value(value ? 1 : 0);
    return Count(sizeof(int64_t));
  }
  bool Int(int value) { return OnNumber(JsonNumber::Signed(value)); }
  bool Uint(unsigned value) { return OnNumber(JsonNumber::Unsigned(value)); }
  bool Int64(int64_t value) { return OnNumber(JsonNumber::Signed(value)); }
  bool Uint64(uint64_t value) { return OnNumber(JsonNumber::Unsigned(value)); }
  bool Double(double value) { return OnNumber(JsonNumber::Decimal(value)); }
  bool RawNumber(const char*, rapidjson::SizeType, bool) { return false; }
  bool String(const char* text, rapidjson::SizeType size, bool);
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
  bool EndArray(rapidjson::SizeType) {
    --depth_;
    if (!LeftSkipped()) OnEndArray();
    return ok();
  }
  Status stopped() const { return stopped_; }

  StatusOr<JsonExamplesRequest> Finish();

 private:
  // Where the next event belongs.
  enum class Place {
    kRoot,
    kTop,       // in the outermost object
    kExamples,  // in the list of "examples"
    kExample,   // in the object of an example or of the context
    kFeature,   // in the list of a feature
    kObject,    // in an object that stands for a value
    kSkip,      // in what nobody reads
  };
  enum class TopKey { kOther, kSignature, kContext, kExamples };

  bool ok() const { return stopped_.ok(); }
  bool Deeper() {
    if (++depth_ <= limits_.max_depth) return true;
    stopped_ = InvalidArgument("JSON Parse error: Lists and objects are nested deeper than ",
                               limits_.max_depth, " at offset: ", bytes_->Tell());
    return false;
  }
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
  // Counts an element of `bytes` bytes.
  bool Count(size_t bytes) {
    ++elements_;
    used_bytes_ += static_cast<int64_t>(bytes);
    if (elements_ > limits_.max_elements || used_bytes_ > limits_.max_bytes) {
      stopped_ =
          InvalidArgument("JSON request: its features may have at most ", limits_.max_elements,
                          " values and ", limits_.max_bytes, " bytes, got more");
    }
    return ok();
  }

  void OnKey(absl::string_view key);
  void OnStartObject();
  void OnEndObject();
  void OnStartArray();
  void OnEndArray();
  bool OnNumber(const JsonNumber& number);
  bool OnOther(const char* type) {
    if (Wants(type)) UnexpectedType(type);
    return ok();
  }
  void TopValueStarts(bool is_list);
  void StartExample(Example* example);
  // A value of `type`, no list and no object, comes. True: it is a feature's.
  bool Wants(const char* type);
  bool HasKind(Feature::KindCase kind);
  void AddBytes(absl::string_view text);
  void UnexpectedType(const char* type) {
    Mistake(InvalidArgument("Feature: ", ShownName(),
                            " has element with unexpected JSON type: ", type));
  }
  std::string ShownName() const { return name_.substr(0, limits_.max_shown_bytes); }
  // Of the context or of the examples, whichever is read: nothing of it counts any more.
  void Mistake(Status status) {
    (top_key_ == TopKey::kContext ? context_status_ : examples_status_) = std::move(status);
    if (depth_ > 1) SkipTo(1, Place::kTop);
  }
  Status OfBody(absl::string_view rule) const {
    return InvalidArgument("JSON Value: ", ShownJson(body_, 0, limits_.max_shown_bytes), rule);
  }

  const absl::string_view body_;
  rapidjson::MemoryStream* const bytes_;
  const JsonLimits& limits_;
  Status stopped_;

  Place place_ = Place::kRoot;
  int depth_ = 0;
  int skip_to_ = 0;
  Place after_skip_ = Place::kTop;
  int64_t elements_ = 0, used_bytes_ = 0;

  bool root_is_object_ = false;
  TopKey top_key_ = TopKey::kOther;
  bool has_signature_ = false, signature_is_string_ = true;
  bool has_context_ = false, has_examples_ = false, examples_are_list_ = false;
  Status context_status_, examples_status_;
  JsonExamplesRequest request_;

  // The example and the feature that are being read.
  Example* example_ = nullptr;
  Feature* feature_ = nullptr;
  std::string name_;
  // An object in a value's place: where it is, how much of {"b64": "..."} was seen.
  Place object_in_ = Place::kExample;
  int base64_seen_ = 0;
  bool may_be_base64_ = false;
  std::string base64_;
};

void ExamplesEvents::OnKey(absl::string_view key) {
  if (place_ == Place::kTop) {
    top_key_ = TopKey::kOther;
    if (key == "signature_name" && !has_signature_) {
      top_key_ = TopKey::kSignature;
      has_signature_ = true;
    } else if (key == "context" && !has_context_) {
      top_key_ = TopKey::kContext;
      has_context_ = true;
    } else if (key == "examples" && !has_examples_) {
      top_key_ = TopKey::kExamples;
      has_examples_ = true;
    }
  } else if (place_ == Place::kExample) {
    name_.assign(key.data(), key.size());
    feature_ = &(*example_->mutable_features()->mutable_feature())[name_];
    feature_->Clear();  // the last of equal features counts
    used_bytes_ += kFeatureBytes + static_cast<int64_t>(key.size());
    Count(0);
  } else if (place_ == Place::kObject) {
    may_be_base64_ = base64_seen_ == 0 && key == "b64";
    base64_seen_ = 1;
  }
}

// A list, or a value that is neither list nor object, behind a key of the request.
void ExamplesEvents::TopValueStarts(bool is_list) {
  if (top_key_ == TopKey::kSignature) signature_is_string_ = false;
  if (top_key_ == TopKey::kExamples) examples_are_list_ = is_list;
}

void ExamplesEvents::StartExample(Example* example) {
  example_ = example;
  place_ = Place::kExample;
  Count(kExampleBytes);
}

void ExamplesEvents::OnStartObject() {
  switch (place_) {
    case Place::kRoot:
      root_is_object_ = true;
      place_ = Place::kTop;
      return;
    case Place::kTop:
      if (top_key_ == TopKey::kContext) return StartExample(&request_.context.emplace());
      TopValueStarts(false);
      return SkipTo(depth_ - 1, Place::kTop);
    case Place::kExamples:
      return StartExample(&request_.examples.emplace_back());
    case Place::kExample:
    case Place::kFeature:
      object_in_ = place_;
      place_ = Place::kObject;
      base64_seen_ = 0;
      may_be_base64_ = false;
      return;
    case Place::kObject:
      may_be_base64_ = false;
      return SkipTo(depth_ - 1, Place::kObject);
    case Place::kSkip:
      return;
  }
}

void ExamplesEvents::OnEndObject() {
  if (place_ == Place::kExample) {
    place_ = top_key_ == TopKey::kContext ? Place::kTop : Place::kExamples;
  } else if (place_ == Place::kObject) {
    place_ = object_in_;
    if (!may_be_base64_ || base64_seen_ != 2) return UnexpectedType("Object");
    if (!HasKind(Feature::kBytesList)) return;
    std::string bytes;
    if (!absl::Base64Unescape(base64_, &bytes)) {
      return Mistake(InvalidArgument("Unable to base64 decode"));
    }
    AddBytes(bytes);
  }
}

void ExamplesEvents::OnStartArray() {
  switch (place_) {
    case Place::kRoot:
      return SkipTo(0, Place::kRoot);
    case Place::kTop:
      if (top_key_ == TopKey::kContext) {
        Mistake(InvalidArgument("Example must be JSON object but got JSON Array"));
        return SkipTo(depth_ - 1, Place::kTop);
      }
      TopValueStarts(true);
      if (top_key_ != TopKey::kExamples) return SkipTo(depth_ - 1, Place::kTop);
      place_ = Place::kExamples;
      return;
    case Place::kExamples:
      return Mistake(InvalidArgument("Example must be JSON object but got JSON Array"));
    case Place::kExample:
      place_ = Place::kFeature;
      return;
    case Place::kFeature:
      return UnexpectedType("Array");
    case Place::kObject:
      may_be_base64_ = false;
      return SkipTo(depth_ - 1, Place::kObject);
    case Place::kSkip:
      return;
  }
}

void ExamplesEvents::OnEndArray() {
  if (place_ == Place::kFeature) {
    place_ = Place::kExample;
  } else if (place_ == Place::kExamples) {
    place_ = Place::kTop;
  }
}

bool ExamplesEvents::Wants(const char* type) {
  switch (place_) {
    case Place::kExample:
    case Place::kFeature:
      return true;
    case Place::kTop:
      TopValueStarts(false);
      if (top_key_ != TopKey::kContext) return false;
      [[fallthrough]];
    case Place::kExamples:
      Mistake(InvalidArgument("Example must be JSON object but got JSON ", type));
      return false;
    case Place::kObject:
      may_be_base64_ = false;
      return false;
    case Place::kRoot:
    case Place::kSkip:
      return false;
  }
  return false;
}

bool ExamplesEvents::OnNumber(const JsonNumber& number) {
  if (!Wants("Number")) return ok();
  if (number.is_decimal()) {
    if (!HasKind(Feature::kFloatList)) return ok();
    feature_->mutable_float_list()->add_value(static_cast<float>(number.ToDouble()));
    return Count(sizeof(float));
  }
  if (!HasKind(Feature::kInt64List)) return ok();
  if (number.is_negative_integer()) {
    feature_->mutable_int64_list()->add_value(number.negative());
  } else if (number.magnitude() <= static_cast<uint64_t>(INT64_MAX)) {
    feature_->mutable_int64_list()->add_value(static_cast<int64_t>(number.magnitude()));
  } else {
    Mistake(InvalidArgument("Feature: ", ShownName(),
                            " has uint64_t element. Only int64_t is supported."));
    return ok();
  }
  return Count(sizeof(int64_t));
}

bool ExamplesEvents::String(const char* text, rapidjson::SizeType size, bool) {
  if (place_ == Place::kObject) {
    if (may_be_base64_) {
      base64_seen_ = 2;
      base64_.assign(text, size);
    }
    return ok();
  }
  if (place_ == Place::kTop && top_key_ == TopKey::kSignature) {
    request_.signature_name.assign(text, size);
    return ok();
  }
  if (Wants("String") && HasKind(Feature::kBytesList)) AddBytes(absl::string_view(text, size));
  return ok();
}

// False, and a mistake, when the feature has values of another kind.
bool ExamplesEvents::HasKind(Feature::KindCase kind) {
  const Feature::KindCase has = feature_->kind_case();
  if (has == kind || has == Feature::KIND_NOT_SET) return true;
  Mistake(InvalidArgument("Unexpected element type in feature: ", ShownName(),
                          " expecting type: ", KindName(has)));
  return false;
}

void ExamplesEvents::AddBytes(absl::string_view text) {
  feature_->mutable_bytes_list()->add_value(text.data(), text.size());
  Count(sizeof(std::string) + text.size());
}

StatusOr<JsonExamplesRequest> ExamplesEvents::Finish() {
  if (!root_is_object_) return OfBody(" Is not object");
  if (!signature_is_string_) {
    return OfBody(" not formatted correctly. 'signature_name' key must be a string value.");
  }
  MR_RETURN_IF_ERROR(context_status_);
  if (!has_examples_) {
    return OfBody(" When method is classify, key 'examples' is expected and was not found");
  }
  if (!examples_are_list_) return OfBody(" Expecting 'examples' value to be an list/array");
  MR_RETURN_IF_ERROR(examples_status_);
  if (request_.examples.empty()) return OfBody(" 'examples' value is an empty array");
  return std::move(request_);
}

}  // namespace

StatusOr<JsonExamplesRequest> ReadExamplesRequest(absl::string_view text,
                                                  const JsonLimits& limits) {
  MR_RETURN_IF_ERROR(CheckJsonSize(text, limits));
  const JsonBody body(text);
  rapidjson::MemoryStream bytes(body.text().data(), body.text().size());
  ExamplesEvents events(body.text(), &bytes, limits);
  MR_RETURN_IF_ERROR(ScanJson(bytes, &events));
  return events.Finish();
}

}  // namespace millrace
