// SPDX-License-Identifier: Apache-2.0
#include "graph/attr.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "core/tensor_proto.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

using tensorflow::AttrValue;

std::atomic<int64_t> constant_bytes_copied{0};  // relaxed: a count

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

// What an attr of C++ type T is called in an OpDef.
template <typename T>
constexpr const char* KindOf() {
  if constexpr (std::is_same_v<T, std::string>) return "string";
  if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, int32_t>) return "int";
  if constexpr (std::is_same_v<T, float>) return "float";
  if constexpr (std::is_same_v<T, bool>) return "bool";
  if constexpr (std::is_same_v<T, DType>) return "type";
  if constexpr (std::is_same_v<T, PartialShape>) return "shape";
  if constexpr (std::is_same_v<T, Tensor>) return "tensor";
  if constexpr (std::is_same_v<T, tensorflow::NameAttrList>) return "func";
}

Status NotA(const char* kind, const AttrValue& attr) {
  return InvalidArgument("must be of type ", kind, ", got ", AttrToString(attr));
}

// Checks of single elements. They are given what AttrValue (or its list) holds.
Status Convert(const std::string& in, std::string* out) {
  *out = in;
  return absl::OkStatus();
}
Status Convert(int64_t in, int64_t* out) {
  *out = in;
  return absl::OkStatus();
}
Status Convert(int64_t in, int32_t* out) {
  if (in < std::numeric_limits<int32_t>::min() || in > std::numeric_limits<int32_t>::max()) {
    return InvalidArgument("must fit into 32 bits, got ", in);
  }
  *out = static_cast<int32_t>(in);
  return absl::OkStatus();
}
Status Convert(float in, float* out) {
  *out = in;
  return absl::OkStatus();
}
Status Convert(bool in, bool* out) {
  *out = in;
  return absl::OkStatus();
}
Status Convert(int in, DType* out) {
  StatusOr<DType> type = DTypeFromNumber(in);
  if (!type.ok()) {
    return InvalidArgument("must be a known type, got number ", in);
  }
  *out = *type;
  return absl::OkStatus();
}
Status Convert(const tensorflow::TensorShapeProto& in, PartialShape* out) {
  MR_ASSIGN_OR_RETURN(*out, PartialShape::FromProto(in));
  return absl::OkStatus();
}
Status Convert(const tensorflow::TensorProto& in, Tensor* out) {
  MR_ASSIGN_OR_RETURN(*out, TensorFromProto(in));
  CountConstantBytes(out->TotalBytes());
  return absl::OkStatus();
}
Status Convert(const tensorflow::NameAttrList& in, tensorflow::NameAttrList* out) {
  // What a constructor that fails has made is lost, not destroyed (core/new_message.h).
  tensorflow::NameAttrList copy(in);
  out->Swap(&copy);
  return absl::OkStatus();
}

template <typename T>
Status ReadScalar(const AttrValue& attr, T* out) {
  constexpr const char* kKind = KindOf<T>();
  if constexpr (std::is_same_v<T, std::string>) {
    if (attr.value_case() == AttrValue::kS) return Convert(attr.s(), out);
  } else if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, int32_t>) {
    if (attr.value_case() == AttrValue::kI) return Convert(int64_t{attr.i()}, out);
  } else if constexpr (std::is_same_v<T, float>) {
    if (attr.value_case() == AttrValue::kF) return Convert(attr.f(), out);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (attr.value_case() == AttrValue::kB) return Convert(attr.b(), out);
  } else if constexpr (std::is_same_v<T, DType>) {
    if (attr.value_case() == AttrValue::kType) return Convert(static_cast<int>(attr.type()), out);
  } else if constexpr (std::is_same_v<T, PartialShape>) {
    if (attr.value_case() == AttrValue::kShape) return Convert(attr.shape(), out);
  } else if constexpr (std::is_same_v<T, Tensor>) {
    if (attr.value_case() == AttrValue::kTensor) return Convert(attr.tensor(), out);
  } else {
    if (attr.value_case() == AttrValue::kFunc) return Convert(attr.func(), out);
  }
  return NotA(kKind, attr);
}

int NumElements(const AttrValue::ListValue& l) {
  return l.s_size() + l.i_size() + l.f_size() + l.b_size() + l.type_size() + l.shape_size() +
         l.tensor_size() + l.func_size();
}

template <typename Elements, typename T>
Status ConvertAll(const AttrValue& attr, const Elements& elements, std::vector<T>* out) {
  if (elements.size() != NumElements(attr.list())) {
    return NotA(absl::StrCat("list(", KindOf<T>(), ")").c_str(), attr);
  }
  out->clear();
  out->reserve(static_cast<size_t>(elements.size()));
  for (const auto& element : elements) {
    T value{};
    MR_RETURN_IF_ERROR(Convert(element, &value));
    out->push_back(std::move(value));
  }
  return absl::OkStatus();
}

template <typename T>
Status ReadList(const AttrValue& attr, std::vector<T>* out) {
  if (attr.value_case() != AttrValue::kList) {
    return NotA(absl::StrCat("list(", KindOf<T>(), ")").c_str(), attr);
  }
  const AttrValue::ListValue& list = attr.list();
  if constexpr (std::is_same_v<T, std::string>) {
    return ConvertAll(attr, list.s(), out);
  } else if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, int32_t>) {
    return ConvertAll(attr, list.i(), out);
  } else if constexpr (std::is_same_v<T, float>) {
    return ConvertAll(attr, list.f(), out);
  } else if constexpr (std::is_same_v<T, bool>) {
    return ConvertAll(attr, list.b(), out);
  } else if constexpr (std::is_same_v<T, DType>) {
    return ConvertAll(attr, list.type(), out);
  } else if constexpr (std::is_same_v<T, PartialShape>) {
    return ConvertAll(attr, list.shape(), out);
  } else if constexpr (std::is_same_v<T, Tensor>) {
    return ConvertAll(attr, list.tensor(), out);
  } else {
    return ConvertAll(attr, list.func(), out);
  }
}

std::string ShapeProtoToString(const tensorflow::TensorShapeProto& proto) {
  StatusOr<PartialShape> shape = PartialShape::FromProto(proto);
  return shape.ok() ? shape->ToString() : "<bad shape>";
}

std::string TypeToString(int number) {
  StatusOr<DType> type = DTypeFromNumber(number);
  return type.ok() ? DTypeEnumName(*type) : absl::StrCat("<type ", number, ">");
}

std::string StringToString(const std::string& s) {
  // Enough to recognise it; attrs may hold whole serialized functions.
  constexpr size_t kMax = 80;
  if (s.size() <= kMax) return absl::StrCat("\"", absl::CEscape(s), "\"");
  return absl::StrCat("\"", absl::CEscape(s.substr(0, kMax)), "...\" (", s.size(), " bytes)");
}

std::string TensorToString(const tensorflow::TensorProto& proto) {
  // Only small tensors are decoded: this is for messages.
  constexpr int64_t kMaxElements = 1024;
  StatusOr<Shape> shape = Shape::FromProto(proto.tensor_shape());
  const std::string type = TypeToString(proto.dtype());
  if (!shape.ok()) return absl::StrCat("<tensor ", type, " of bad shape>");
  if (shape->num_elements() <= kMaxElements) {
    StatusOr<Tensor> tensor = TensorFromProto(proto);
    if (tensor.ok()) return absl::StrCat("<", tensor->DebugString(), ">");
  }
  return absl::StrCat("<tensor ", type, " ", shape->ToString(), ">");
}

std::string FuncToString(const tensorflow::NameAttrList& func) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : func.attr()) {
    parts.push_back(absl::StrCat(name, "=", AttrToString(value)));
  }
  std::sort(parts.begin(), parts.end());
  return absl::StrCat(func.name(), "[", absl::StrJoin(parts, ", "), "]");
}

}  // namespace

absl::string_view NodeAttrs::name() const {
  return name_.empty() ? absl::string_view(node_->name()) : name_;
}

int64_t ConstantBytesCopiedForTesting() {
  return constant_bytes_copied.load(std::memory_order_relaxed);
}

void CountConstantBytes(int64_t bytes) {
  constant_bytes_copied.fetch_add(bytes, std::memory_order_relaxed);
}

template <typename T>
StatusOr<T> GetAttr(const NodeAttrs& attrs, absl::string_view name) {
  if constexpr (std::is_same_v<T, Tensor>) {
    if (attrs.value() != nullptr && name == "value") return *attrs.value();
  }
  const tensorflow::NodeDef& node = attrs.node();
  auto it = node.attr().find(std::string(name));
  if (it == node.attr().end()) {
    return absl::NotFoundError(
        absl::StrCat(node.op(), " '", attrs.name(), "': attr '", name, "' is missing"));
  }
  T value{};
  Status status;
  if constexpr (IsVector<T>::value) {
    status = ReadList(it->second, &value);
  } else {
    status = ReadScalar(it->second, &value);
  }
  if (!status.ok()) {
    return InvalidArgument(node.op(), " '", attrs.name(), "': attr '", name, "' ",
                           status.message());
  }
  return value;
}

#define MR_ATTR_TYPE(T)                                                             \
  template StatusOr<T> GetAttr<T>(const NodeAttrs& attrs, absl::string_view name);  \
  template StatusOr<std::vector<T>> GetAttr<std::vector<T>>(const NodeAttrs& attrs, \
                                                            absl::string_view name)
MR_ATTR_TYPE(std::string);
MR_ATTR_TYPE(int64_t);
MR_ATTR_TYPE(int32_t);
MR_ATTR_TYPE(float);
MR_ATTR_TYPE(bool);
MR_ATTR_TYPE(DType);
MR_ATTR_TYPE(PartialShape);
MR_ATTR_TYPE(Tensor);
MR_ATTR_TYPE(tensorflow::NameAttrList);
#undef MR_ATTR_TYPE

bool HasAttr(const tensorflow::NodeDef& node, absl::string_view name) {
  return node.attr().contains(std::string(name));
}

void SetAttr(absl::string_view value, AttrValue* attr) { attr->set_s(std::string(value)); }
void SetAttr(const char* value, AttrValue* attr) { attr->set_s(value); }
void SetAttr(int64_t value, AttrValue* attr) { attr->set_i(value); }
void SetAttr(int32_t value, AttrValue* attr) { attr->set_i(value); }
void SetAttr(float value, AttrValue* attr) { attr->set_f(value); }
void SetAttr(bool value, AttrValue* attr) { attr->set_b(value); }
void SetAttr(DType value, AttrValue* attr) {
  attr->set_type(static_cast<tensorflow::DataType>(value));
}
void SetAttr(const PartialShape& value, AttrValue* attr) { value.ToProto(attr->mutable_shape()); }
void SetAttr(const Tensor& value, AttrValue* attr) {
  // A tensor without a wire form (a variant) leaves an empty proto, which verification refuses.
  if (!TensorToProto(value, attr->mutable_tensor()).ok()) attr->mutable_tensor()->Clear();
  CountConstantBytes(value.TotalBytes());
}
void SetAttr(const tensorflow::NameAttrList& value, AttrValue* attr) {
  *attr->mutable_func() = value;
}
void SetAttr(const FunctionName& value, AttrValue* attr) {
  attr->mutable_func()->set_name(value.name);
}
void SetAttr(const std::vector<FunctionName>& value, AttrValue* attr) {
  attr->mutable_list();
  for (const FunctionName& function : value) {
    attr->mutable_list()->add_func()->set_name(function.name);
  }
}
void SetAttr(const std::vector<std::string>& value, AttrValue* attr) {
  *attr->mutable_list()->mutable_s() = {value.begin(), value.end()};
}
void SetAttr(const std::vector<int64_t>& value, AttrValue* attr) {
  *attr->mutable_list()->mutable_i() = {value.begin(), value.end()};
}
void SetAttr(const std::vector<float>& value, AttrValue* attr) {
  *attr->mutable_list()->mutable_f() = {value.begin(), value.end()};
}
void SetAttr(const std::vector<bool>& value, AttrValue* attr) {
  *attr->mutable_list()->mutable_b() = {value.begin(), value.end()};
}
void SetAttr(const std::vector<DType>& value, AttrValue* attr) {
  AttrValue::ListValue* list = attr->mutable_list();
  list->clear_type();
  for (DType type : value) list->add_type(static_cast<tensorflow::DataType>(type));
}
void SetAttr(const std::vector<PartialShape>& value, AttrValue* attr) {
  AttrValue::ListValue* list = attr->mutable_list();
  list->clear_shape();
  for (const PartialShape& shape : value) shape.ToProto(list->add_shape());
}
void SetAttr(const AttrValue& value, AttrValue* attr) { *attr = value; }

std::string AttrToString(const AttrValue& attr) {
  switch (attr.value_case()) {
    case AttrValue::kS:
      return StringToString(attr.s());
    case AttrValue::kI:
      return absl::StrCat(attr.i());
    case AttrValue::kF:
      return absl::StrCat(attr.f());
    case AttrValue::kB:
      return attr.b() ? "true" : "false";
    case AttrValue::kType:
      return TypeToString(attr.type());
    case AttrValue::kShape:
      return ShapeProtoToString(attr.shape());
    case AttrValue::kTensor:
      return TensorToString(attr.tensor());
    case AttrValue::kFunc:
      return FuncToString(attr.func());
    case AttrValue::kPlaceholder:
      return absl::StrCat("$", attr.placeholder());
    case AttrValue::VALUE_NOT_SET:
      return "<no value>";
    case AttrValue::kList:
      break;
  }
  const AttrValue::ListValue& list = attr.list();
  std::vector<std::string> parts;
  for (const auto& s : list.s()) parts.push_back(StringToString(s));
  for (const auto i : list.i()) parts.push_back(absl::StrCat(i));
  for (const float f : list.f()) parts.push_back(absl::StrCat(f));
  for (const bool b : list.b()) parts.push_back(b ? "true" : "false");
  for (const int type : list.type()) parts.push_back(TypeToString(type));
  for (const auto& shape : list.shape()) parts.push_back(ShapeProtoToString(shape));
  for (const auto& tensor : list.tensor()) parts.push_back(TensorToString(tensor));
  for (const auto& func : list.func()) parts.push_back(FuncToString(func));
  // Long lists keep head and tail: messages stay one line.
  constexpr size_t kMaxParts = 50;
  if (parts.size() > kMaxParts) {
    const size_t left_out = parts.size() - kMaxParts;
    parts[kMaxParts / 2] = absl::StrCat("... (", left_out + 1, " more)");
    parts.erase(parts.begin() + kMaxParts / 2 + 1,
                parts.begin() + static_cast<std::ptrdiff_t>(kMaxParts / 2 + left_out + 1));
  }
  return absl::StrCat("[", absl::StrJoin(parts, ", "), "]");
}

}  // namespace millrace
