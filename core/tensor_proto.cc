// SPDX-License-Identifier: Apache-2.0
#include "core/tensor_proto.h"

#include <algorithm>
#include <bit>
#include <complex>
#include <cstddef>
#include <limits>
#include <new>
#include <string>
#include <type_traits>

#include "core/allocator.h"
#include "core/resource_handle.h"
#include "core/status.h"
#include "proto/tensor.pb.h"
#include "proto/types.pb.h"

namespace millrace {
namespace {

static_assert(std::endian::native == std::endian::little, "raw content is little-endian");

#define MR_SAME(name)                                                          \
  static_assert(static_cast<int>(name) == static_cast<int>(tensorflow::name)); \
  static_assert(static_cast<int>(RefOf(name)) == static_cast<int>(tensorflow::name##_REF))
MR_SAME(DT_FLOAT);
MR_SAME(DT_DOUBLE);
MR_SAME(DT_INT32);
MR_SAME(DT_UINT8);
MR_SAME(DT_INT16);
MR_SAME(DT_INT8);
MR_SAME(DT_STRING);
MR_SAME(DT_COMPLEX64);
MR_SAME(DT_INT64);
MR_SAME(DT_BOOL);
MR_SAME(DT_QINT8);
MR_SAME(DT_QUINT8);
MR_SAME(DT_QINT32);
MR_SAME(DT_BFLOAT16);
MR_SAME(DT_QINT16);
MR_SAME(DT_QUINT16);
MR_SAME(DT_UINT16);
MR_SAME(DT_COMPLEX128);
MR_SAME(DT_HALF);
MR_SAME(DT_RESOURCE);
MR_SAME(DT_VARIANT);
MR_SAME(DT_UINT32);
MR_SAME(DT_UINT64);
#undef MR_SAME
static_assert(static_cast<int>(DT_INVALID) == static_cast<int>(tensorflow::DT_INVALID));

// Variants hold tensors that may hold variants: a bound on the stack that a message can use.
constexpr int kMaxVariantNesting = 32;
// Protobuf's limit for one message.
constexpr int64_t kMaxProtoBytes = std::numeric_limits<int32_t>::max();

template <typename... Args>
Status ParseError(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat("Cannot parse tensor from proto: ", args...));
}

// Codec<T>: where the elements of T live in a TensorProto.
//   Count(proto)        elements in the typed list
//   Get(proto, i)       element i of it; i < Count(proto)
//   Add(value, proto)   appends an element
template <typename T>
struct Codec;

#define MR_CODEC(type, field, from_wire, to_wire)                                    \
  template <>                                                                        \
  struct Codec<type> {                                                               \
    static int Count(const tensorflow::TensorProto& p) { return p.field##_size(); }  \
    static type Get(const tensorflow::TensorProto& p, int i) {                       \
      const auto w = p.field(i);                                                     \
      return from_wire;                                                              \
    }                                                                                \
    static void Add(type v, tensorflow::TensorProto* p) { p->add_##field(to_wire); } \
  }
MR_CODEC(float, float_val, w, v);
MR_CODEC(double, double_val, w, v);
MR_CODEC(int32_t, int_val, w, v);
MR_CODEC(uint8_t, int_val, static_cast<uint8_t>(w), v);
MR_CODEC(int16_t, int_val, static_cast<int16_t>(w), v);
MR_CODEC(int8_t, int_val, static_cast<int8_t>(w), v);
MR_CODEC(uint16_t, int_val, static_cast<uint16_t>(w), v);
MR_CODEC(int64_t, int64_val, w, v);
MR_CODEC(bool, bool_val, w, v);
MR_CODEC(uint32_t, uint32_val, w, v);
MR_CODEC(uint64_t, uint64_val, w, v);
MR_CODEC(QInt8, int_val, QInt8{static_cast<int8_t>(w)}, v.value);
MR_CODEC(QUInt8, int_val, QUInt8{static_cast<uint8_t>(w)}, v.value);
MR_CODEC(QInt16, int_val, QInt16{static_cast<int16_t>(w)}, v.value);
MR_CODEC(QUInt16, int_val, QUInt16{static_cast<uint16_t>(w)}, v.value);
MR_CODEC(QInt32, int_val, QInt32{w}, v.value);
MR_CODEC(Half, half_val, Half{static_cast<uint16_t>(w)}, v.bits);
MR_CODEC(Bfloat16, half_val, Bfloat16{static_cast<uint16_t>(w)}, v.bits);
#undef MR_CODEC

#define MR_COMPLEX_CODEC(type, field)                                                   \
  template <>                                                                           \
  struct Codec<type> {                                                                  \
    static int Count(const tensorflow::TensorProto& p) { return p.field##_size() / 2; } \
    static type Get(const tensorflow::TensorProto& p, int i) {                          \
      return type(p.field(2 * i), p.field(2 * i + 1));                                  \
    }                                                                                   \
    static void Add(type v, tensorflow::TensorProto* p) {                               \
      p->add_##field(v.real());                                                         \
      p->add_##field(v.imag());                                                         \
    }                                                                                   \
  }
MR_COMPLEX_CODEC(std::complex<float>, scomplex_val);
MR_COMPLEX_CODEC(std::complex<double>, dcomplex_val);
#undef MR_COMPLEX_CODEC

// SameList<T>: the typed list whose elements in memory are T themselves, where there is one: copied
// as bytes, not one by one.
template <typename T>
struct SameList {
  static constexpr bool kExists = false;
};
#define MR_SAME_LIST(type, field)                                                     \
  template <>                                                                         \
  struct SameList<type> {                                                             \
    static constexpr bool kExists = true;                                             \
    static const auto& Of(const tensorflow::TensorProto& p) { return p.field(); }     \
    static auto* Mutable(tensorflow::TensorProto* p) { return p->mutable_##field(); } \
  }
MR_SAME_LIST(float, float_val);
MR_SAME_LIST(double, double_val);
MR_SAME_LIST(int32_t, int_val);
MR_SAME_LIST(int64_t, int64_val);
MR_SAME_LIST(bool, bool_val);
MR_SAME_LIST(uint32_t, uint32_val);
MR_SAME_LIST(uint64_t, uint64_val);
#undef MR_SAME_LIST

// Calls f.operator()<T>() for the number type of `dtype`, which is memcopyable.
template <typename F>
auto ForNumberType(DType dtype, F&& f) {
  switch (dtype) {
    case DT_FLOAT:
      return f.template operator()<float>();
    case DT_DOUBLE:
      return f.template operator()<double>();
    case DT_INT32:
      return f.template operator()<int32_t>();
    case DT_UINT8:
      return f.template operator()<uint8_t>();
    case DT_INT16:
      return f.template operator()<int16_t>();
    case DT_INT8:
      return f.template operator()<int8_t>();
    case DT_COMPLEX64:
      return f.template operator()<std::complex<float>>();
    case DT_INT64:
      return f.template operator()<int64_t>();
    case DT_BOOL:
      return f.template operator()<bool>();
    case DT_QINT8:
      return f.template operator()<QInt8>();
    case DT_QUINT8:
      return f.template operator()<QUInt8>();
    case DT_QINT32:
      return f.template operator()<QInt32>();
    case DT_BFLOAT16:
      return f.template operator()<Bfloat16>();
    case DT_QINT16:
      return f.template operator()<QInt16>();
    case DT_QUINT16:
      return f.template operator()<QUInt16>();
    case DT_UINT16:
      return f.template operator()<uint16_t>();
    case DT_COMPLEX128:
      return f.template operator()<std::complex<double>>();
    case DT_HALF:
      return f.template operator()<Half>();
    case DT_UINT32:
      return f.template operator()<uint32_t>();
    default:
      assert(dtype == DT_UINT64);
      return f.template operator()<uint64_t>();
  }
}

// dtype and shape of a proto that Inspect has accepted.
struct Header {
  DType dtype = DT_INVALID;
  Shape shape;
};

// Takes a varint32 off the front of `*rest`. False when there is none.
bool ConsumeVarint32(absl::string_view* rest, uint32_t* value) {
  uint32_t result = 0;
  for (size_t i = 0; i < 5 && i < rest->size(); ++i) {
    const uint32_t byte = static_cast<uint8_t>((*rest)[i]);
    if (i == 4 && byte > 0x0f) return false;  // more than 32 bits
    result |= (byte & 0x7f) << (7 * i);
    if ((byte & 0x80) == 0) {
      *value = result;
      rest->remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

// String content: `count` lengths, then all the bytes, and nothing else.
Status CheckStringContent(absl::string_view content, int64_t count) {
  // Each length takes a byte at least, so `count` is bounded by the content from here on.
  if (count > static_cast<int64_t>(content.size())) {
    return ParseError("tensor_content must hold ", count, " string lengths, got ", content.size(),
                      " bytes");
  }
  absl::string_view rest = content;
  uint64_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t length = 0;
    if (!ConsumeVarint32(&rest, &length)) {
      return ParseError("tensor_content must hold ", count,
                        " string lengths, got no varint32 for string ", i);
    }
    total += length;
  }
  if (total != rest.size()) {
    return ParseError("tensor_content must hold ", total, " bytes of strings, got ", rest.size());
  }
  return absl::OkStatus();
}

Status Validate(const tensorflow::TensorProto& proto, int nesting, Header* header);

Status CheckVariant(const tensorflow::VariantTensorDataProto& variant, int nesting) {
  if (nesting >= kMaxVariantNesting) {
    return ParseError("variants must be nested at most ", kMaxVariantNesting, " deep, got more");
  }
  for (const tensorflow::TensorProto& tensor : variant.tensors()) {
    if (tensor.dtype() == tensorflow::DT_INVALID) continue;  // "no value"
    Header inner;
    MR_RETURN_IF_ERROR(Validate(tensor, nesting + 1, &inner));
  }
  return absl::OkStatus();
}

Status CheckHandle(const tensorflow::ResourceHandleProto& handle) {
  for (const auto& stored : handle.dtypes_and_shapes()) {
    if (StatusOr<DType> type = DTypeFromNumber(stored.dtype()); !type.ok()) {
      return ParseError("handle '", handle.name(), "': ", type.status().message());
    }
    if (StatusOr<PartialShape> s = PartialShape::FromProto(stored.shape()); !s.ok()) {
      return ParseError("handle '", handle.name(), "': ", s.status().message());
    }
  }
  return absl::OkStatus();
}

// All rules of a TensorProto, once. Allocates nothing that grows with the message's claims.
Status Validate(const tensorflow::TensorProto& proto, int nesting, Header* header) {
  const int number = proto.dtype();
  StatusOr<DType> dtype = DTypeFromNumber(number);
  if (!dtype.ok() || *dtype == DT_INVALID || IsRef(*dtype)) {
    return ParseError("dtype must be that of a value, got ", number);
  }
  StatusOr<Shape> shape = Shape::FromProto(proto.tensor_shape());
  if (!shape.ok()) return ParseError(shape.status().message());
  header->dtype = *dtype;
  header->shape = *std::move(shape);
  const int64_t count = header->shape.num_elements();
  if (count == 0) return absl::OkStatus();  // nothing is read

  const absl::string_view content = proto.tensor_content();
  switch (*dtype) {
    case DT_STRING:
      if (!content.empty()) return CheckStringContent(content, count);
      return absl::OkStatus();
    case DT_RESOURCE:
      if (!content.empty()) break;
      for (const auto& handle : proto.resource_handle_val())
        MR_RETURN_IF_ERROR(CheckHandle(handle));
      return absl::OkStatus();
    case DT_VARIANT:
      if (!content.empty()) break;
      for (const auto& v : proto.variant_val()) MR_RETURN_IF_ERROR(CheckVariant(v, nesting));
      return absl::OkStatus();
    default: {
      if (!content.empty()) {
        const int64_t needed = count * static_cast<int64_t>(DTypeSize(*dtype));
        if (static_cast<int64_t>(content.size()) != needed) {
          return ParseError("tensor_content of ", DTypeName(*dtype), header->shape.ToString(),
                            " must have ", needed, " bytes, got ", content.size());
        }
        return absl::OkStatus();
      }
      const int parts = *dtype == DT_COMPLEX64    ? proto.scomplex_val_size()
                        : *dtype == DT_COMPLEX128 ? proto.dcomplex_val_size()
                                                  : 0;
      if (parts % 2 != 0) {
        return ParseError(DTypeName(*dtype), " values must be pairs, got ", parts, " numbers");
      }
      return absl::OkStatus();
    }
  }
  return ParseError("a tensor of ", DTypeName(*dtype), " must have no tensor_content, got ",
                    content.size(), " bytes");
}

template <typename T>
void ReadNumbers(const tensorflow::TensorProto& proto, Tensor* tensor) {
  const absl::Span<T> out = tensor->mutable_raw<T>();
  const absl::string_view content = proto.tensor_content();
  if (!content.empty()) {
    if constexpr (std::is_same_v<T, bool>) {
      // Any byte but 0 means true, and only 0 and 1 may become bools.
      for (size_t i = 0; i < out.size(); ++i) out[i] = content[i] != 0;
    } else {
      std::memcpy(out.data(), content.data(), content.size());
    }
    return;
  }
  const size_t listed = std::min(static_cast<size_t>(Codec<T>::Count(proto)), out.size());
  if constexpr (SameList<T>::kExists) {
    std::copy_n(SameList<T>::Of(proto).begin(), listed, out.begin());
  } else {
    for (size_t i = 0; i < listed; ++i) out[i] = Codec<T>::Get(proto, static_cast<int>(i));
  }
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(listed), out.end(),
            listed == 0 ? T{} : T{out[listed - 1]});
}

void ReadStrings(const tensorflow::TensorProto& proto, Tensor* tensor) {
  const absl::Span<std::string> out = tensor->mutable_raw<std::string>();
  if (!proto.tensor_content().empty()) {
    absl::string_view lengths = proto.tensor_content();
    absl::string_view bytes = lengths;
    uint32_t length = 0;
    for (size_t i = 0; i < out.size(); ++i) ConsumeVarint32(&bytes, &length);
    for (std::string& s : out) {
      ConsumeVarint32(&lengths, &length);
      s.assign(bytes.data(), length);
      bytes.remove_prefix(length);
    }
    return;
  }
  if (proto.string_val_size() == 0) return;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = proto.string_val(
        static_cast<int>(std::min(i, static_cast<size_t>(proto.string_val_size() - 1))));
  }
}

// Of a proto that CheckHandle has accepted.
ResourceHandle ReadHandle(const tensorflow::ResourceHandleProto& proto) {
  ResourceHandle handle;
  handle.device = proto.device();
  handle.container = proto.container();
  handle.name = proto.name();
  handle.hash_code = proto.hash_code();
  handle.type_name = proto.maybe_type_name();
  for (const auto& stored : proto.dtypes_and_shapes()) {
    handle.dtypes.push_back(static_cast<DType>(stored.dtype()));
    handle.shapes.push_back(*PartialShape::FromProto(stored.shape()));
  }
  return handle;
}

void ReadHandles(const tensorflow::TensorProto& proto, Tensor* tensor) {
  const absl::Span<ResourceHandle> out = tensor->mutable_raw<ResourceHandle>();
  const int listed = proto.resource_handle_val_size();
  if (listed == 0) return;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = i < static_cast<size_t>(listed)
                 ? ReadHandle(proto.resource_handle_val(static_cast<int>(i)))
                 : out[i - 1];
  }
}

StatusOr<Tensor> Read(const tensorflow::TensorProto& proto, const Header& header,
                      Allocator* allocator);

Status ReadVariants(const tensorflow::TensorProto& proto, Tensor* tensor, Allocator* allocator) {
  const absl::Span<Variant> out = tensor->mutable_raw<Variant>();
  const size_t listed = std::min(out.size(), static_cast<size_t>(proto.variant_val_size()));
  for (size_t i = 0; i < listed; ++i) {
    const auto& from = proto.variant_val(static_cast<int>(i));
    out[i].type_name = from.type_name();
    out[i].metadata = from.metadata();
    for (const tensorflow::TensorProto& inner : from.tensors()) {
      Tensor value;
      if (inner.dtype() != tensorflow::DT_INVALID) {
        // Accepted before, with everything around it.
        MR_ASSIGN_OR_RETURN(Shape shape, Shape::FromProto(inner.tensor_shape()));
        MR_ASSIGN_OR_RETURN(
            value, Read(inner, {static_cast<DType>(inner.dtype()), std::move(shape)}, allocator));
      }
      out[i].tensors.push_back(std::move(value));
    }
  }
  return absl::OkStatus();
}

StatusOr<Tensor> Read(const tensorflow::TensorProto& proto, const Header& header,
                      Allocator* allocator) {
  MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(header.dtype, header.shape, allocator));
  if (tensor.num_elements() == 0) return tensor;
  switch (header.dtype) {
    case DT_STRING:
      ReadStrings(proto, &tensor);
      break;
    case DT_RESOURCE:
      ReadHandles(proto, &tensor);
      break;
    case DT_VARIANT:
      MR_RETURN_IF_ERROR(ReadVariants(proto, &tensor, allocator));
      break;
    default:
      ForNumberType(header.dtype, [&]<typename T>() { ReadNumbers<T>(proto, &tensor); });
  }
  return tensor;
}

// The types that Python's writer puts into raw content when there is more than one element.
bool WrittenRaw(DType dtype) {
  switch (dtype) {
    case DT_BOOL:
    case DT_HALF:
    case DT_BFLOAT16:
    case DT_UINT16:
    case DT_COMPLEX64:
    case DT_COMPLEX128:
      return false;
    default:
      return IsMemcopyable(dtype);
  }
}

void WriteHandle(const ResourceHandle& handle, tensorflow::ResourceHandleProto* proto) {
  proto->set_device(handle.device);
  proto->set_container(handle.container);
  proto->set_name(handle.name);
  proto->set_hash_code(handle.hash_code);
  proto->set_maybe_type_name(handle.type_name);
  const size_t stored = std::min(handle.dtypes.size(), handle.shapes.size());
  for (size_t i = 0; i < stored; ++i) {
    auto* const out = proto->add_dtypes_and_shapes();
    out->set_dtype(static_cast<tensorflow::DataType>(handle.dtypes[i]));
    handle.shapes[i].ToProto(out->mutable_shape());
  }
}

Status Write(const Tensor& tensor, int nesting, tensorflow::TensorProto* proto);

Status WriteVariant(const Variant& variant, int nesting,
                    tensorflow::VariantTensorDataProto* proto) {
  if (nesting >= kMaxVariantNesting) {
    return absl::InvalidArgumentError(absl::StrCat("Tensor: variants must be nested at most ",
                                                   kMaxVariantNesting, " deep, got more"));
  }
  if (variant.type_name.empty() && !(variant.metadata.empty() && variant.tensors.empty())) {
    return absl::UnimplementedError(
        "Tensor: a variant must have a type name to be serialized, got none");
  }
  proto->set_type_name(variant.type_name);
  proto->set_metadata(variant.metadata);
  for (const Tensor& inner : variant.tensors) {
    tensorflow::TensorProto* const out = proto->add_tensors();
    if (inner.has_value()) MR_RETURN_IF_ERROR(Write(inner, nesting + 1, out));
  }
  return absl::OkStatus();
}

template <typename T>
void WriteNumbers(const Tensor& tensor, tensorflow::TensorProto* proto) {
  const absl::Span<const T> values = tensor.raw<T>();
  if constexpr (SameList<T>::kExists) {
    SameList<T>::Mutable(proto)->Add(values.begin(), values.end());
  } else {
    for (const T& value : values) Codec<T>::Add(value, proto);
  }
}

// Each string's length, as in a message, then all the bytes: what CheckStringContent accepts.
void WriteStringContent(const Tensor& tensor, std::string* content) {
  for (const std::string& s : tensor.raw<std::string>()) {
    size_t length = s.size();
    for (; length >= 0x80; length >>= 7) {
      content->push_back(static_cast<char>((length & 0x7f) | 0x80));
    }
    content->push_back(static_cast<char>(length));
  }
  for (const std::string& s : tensor.raw<std::string>()) content->append(s);
}

// What can be written at all; `proto` is empty then.
Status BeginWrite(const Tensor& tensor, tensorflow::TensorProto* proto) {
  proto->Clear();
  if (!tensor.has_value()) {
    return absl::InvalidArgumentError("Tensor: only a value can be serialized, got none");
  }
  if (tensor.TotalBytes() > kMaxProtoBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Tensor: a TensorProto must be at most ", kMaxProtoBytes, " bytes, got ",
        tensor.TotalBytes(), " (", DTypeName(tensor.dtype()), tensor.shape().ToString(), ")"));
  }
  return absl::OkStatus();
}

void WriteHeader(const Tensor& tensor, tensorflow::TensorProto* proto) {
  proto->set_dtype(static_cast<tensorflow::DataType>(tensor.dtype()));
  tensor.shape().ToProto(proto->mutable_tensor_shape());
}

Status Write(const Tensor& tensor, int nesting, tensorflow::TensorProto* proto) {
  WriteHeader(tensor, proto);
  if (tensor.num_elements() == 0) return absl::OkStatus();
  switch (tensor.dtype()) {
    case DT_STRING:
      for (const std::string& s : tensor.raw<std::string>()) proto->add_string_val(s);
      break;
    case DT_RESOURCE:
      for (const ResourceHandle& handle : tensor.raw<ResourceHandle>()) {
        WriteHandle(handle, proto->add_resource_handle_val());
      }
      break;
    case DT_VARIANT:
      for (const Variant& variant : tensor.raw<Variant>()) {
        MR_RETURN_IF_ERROR(WriteVariant(variant, nesting, proto->add_variant_val()));
      }
      break;
    default:
      if (HasRawContent(tensor)) {
        const absl::Span<const char> bytes = tensor.bytes();
        proto->set_tensor_content(bytes.data(), bytes.size());
      } else {
        ForNumberType(tensor.dtype(), [&]<typename T>() { WriteNumbers<T>(tensor, proto); });
      }
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<Tensor> TensorFromProto(const tensorflow::TensorProto& proto, Allocator* allocator) {
  Header header;
  MR_RETURN_IF_ERROR(Validate(proto, 0, &header));
  try {
    return Read(proto, header, allocator);
  } catch (const std::bad_alloc&) {  // of a string
    return absl::ResourceExhaustedError(absl::StrCat("Tensor: OOM when reading ",
                                                     DTypeName(header.dtype),
                                                     header.shape.ToString(), " from proto"));
  }
}

Status ValidateTensorProto(const tensorflow::TensorProto& proto) {
  Header header;
  return Validate(proto, 0, &header);
}

bool HasRawContent(const Tensor& tensor) {
  return tensor.num_elements() > 1 && WrittenRaw(tensor.dtype()) &&
         tensor.TotalBytes() <= kMaxProtoBytes;
}

Status TensorToProto(const Tensor& tensor, tensorflow::TensorProto* proto) {
  MR_RETURN_IF_ERROR(BeginWrite(tensor, proto));
  return Write(tensor, 0, proto);
}

Status TensorToListedProto(const Tensor& tensor, tensorflow::TensorProto* proto) {
  MR_RETURN_IF_ERROR(BeginWrite(tensor, proto));
  if (!IsMemcopyable(tensor.dtype())) return Write(tensor, 0, proto);  // in its list
  WriteHeader(tensor, proto);
  ForNumberType(tensor.dtype(), [&]<typename T>() { WriteNumbers<T>(tensor, proto); });
  return absl::OkStatus();
}

Status TensorToContentProto(const Tensor& tensor, tensorflow::TensorProto* proto) {
  MR_RETURN_IF_ERROR(BeginWrite(tensor, proto));
  if (tensor.dtype() != DT_STRING && !IsMemcopyable(tensor.dtype())) {
    return Write(tensor, 0, proto);
  }
  WriteHeader(tensor, proto);
  if (tensor.num_elements() == 0) return absl::OkStatus();
  if (tensor.dtype() == DT_STRING) {
    WriteStringContent(tensor, proto->mutable_tensor_content());
  } else {
    const absl::Span<const char> bytes = tensor.bytes();
    proto->set_tensor_content(bytes.data(), bytes.size());
  }
  return absl::OkStatus();
}

}  // namespace millrace
