// SPDX-License-Identifier: Apache-2.0
#include "core/tensor.h"

#include <algorithm>
#include <complex>
#include <limits>
#include <ostream>
#include <type_traits>

#include "absl/strings/escaping.h"
#include "core/resource_handle.h"

namespace millrace {
namespace {

// Elements that are C++ objects, constructed behind their header in one block.
template <typename T>
class ObjectBuffer final : public Buffer {
 public:
  // Null when there is no memory.
  static BufferRef Make(Allocator* allocator, size_t count) {
    if (count > (std::numeric_limits<size_t>::max() - kHeaderSize) / sizeof(T)) return BufferRef();
    void* const block = allocator->Allocate(kHeaderSize + count * sizeof(T));
    if (block == nullptr) return BufferRef();
    void* const data = static_cast<char*>(block) + kHeaderSize;
    static_assert(std::is_nothrow_default_constructible_v<T>);
    std::uninitialized_value_construct_n(static_cast<T*>(data), count);
    return BufferRef(new (block) ObjectBuffer(data, count, allocator));
  }

 private:
  static constexpr size_t kHeaderSize = Allocator::kAlignment;
  static_assert(alignof(T) <= Allocator::kAlignment);

  ObjectBuffer(void* data, size_t count, Allocator* allocator)
      : Buffer(data, count * sizeof(T)), allocator_(allocator) {
    static_assert(sizeof(ObjectBuffer) <= kHeaderSize);
  }

  void Destroy() override {
    Allocator* const allocator = allocator_;
    const size_t block_size = kHeaderSize + size();
    std::destroy_n(static_cast<T*>(data()), size() / sizeof(T));
    this->~ObjectBuffer();
    allocator->Deallocate(this, block_size);
  }

  Allocator* const allocator_;
};

// What a reference refers to: no elements, one pointer.
class ReferenceBuffer final : public Buffer {
 public:
  static BufferRef Make(std::shared_ptr<Resource> resource) {
    void* const block = DefaultAllocator()->Allocate(sizeof(ReferenceBuffer));
    if (block == nullptr) throw std::bad_alloc();
    return BufferRef(new (block) ReferenceBuffer(std::move(resource)));
  }
  const std::shared_ptr<Resource>& resource() const { return resource_; }

 private:
  explicit ReferenceBuffer(std::shared_ptr<Resource> resource)
      : Buffer(nullptr, 0), resource_(std::move(resource)) {}

  void Destroy() override {
    this->~ReferenceBuffer();
    DefaultAllocator()->Deallocate(this, sizeof(ReferenceBuffer));
  }

  const std::shared_ptr<Resource> resource_;
};

// Bytes from one element to the next in memory, objects included.
size_t ElementStride(DType dtype) {
  switch (dtype) {
    case DT_STRING:
      return sizeof(std::string);
    case DT_RESOURCE:
      return sizeof(ResourceHandle);
    case DT_VARIANT:
      return sizeof(Variant);
    default:
      return DTypeSize(dtype);
  }
}

size_t ElementAlignment(DType dtype) {
  return IsComplex(dtype) ? DTypeSize(dtype) / 2 : DTypeSize(dtype);
}

Status NoMemory(DType dtype, const Shape& shape) {
  return absl::ResourceExhaustedError(absl::StrCat("Tensor: OOM when allocating tensor with shape",
                                                   shape.ToString(), " and type ",
                                                   DTypeName(dtype)));
}

// Calls `f` with a pointer of the element type, which is null; false when there is no such type.
template <typename F>
bool ForPrintable(DType dtype, F&& f) {
  switch (dtype) {
#define MR_CASE(type)                     \
  case DTypeOf<type>:                     \
    f(static_cast<const type*>(nullptr)); \
    return true
    MR_CASE(float);
    MR_CASE(double);
    MR_CASE(int32_t);
    MR_CASE(uint8_t);
    MR_CASE(int16_t);
    MR_CASE(int8_t);
    MR_CASE(std::string);
    MR_CASE(std::complex<float>);
    MR_CASE(int64_t);
    MR_CASE(bool);
    MR_CASE(QInt8);
    MR_CASE(QUInt8);
    MR_CASE(QInt32);
    MR_CASE(Bfloat16);
    MR_CASE(QInt16);
    MR_CASE(QUInt16);
    MR_CASE(uint16_t);
    MR_CASE(std::complex<double>);
    MR_CASE(Half);
    MR_CASE(ResourceHandle);
    MR_CASE(Variant);
    MR_CASE(uint32_t);
    MR_CASE(uint64_t);
#undef MR_CASE
    default:
      return false;
  }
}

std::string Print(float v) { return absl::StrCat(v); }
std::string Print(double v) { return absl::StrCat(v); }
std::string Print(bool v) { return v ? "true" : "false"; }
std::string Print(Half v) { return absl::StrCat(ToFloat(v)); }
std::string Print(Bfloat16 v) { return absl::StrCat(ToFloat(v)); }
std::string Print(const ResourceHandle& v) {
  return absl::StrCat(v.type_name, " '", v.container, "/", v.name, "' on ", v.device);
}
std::string Print(const Variant& v) {
  return absl::StrCat("Variant<", v.type_name, ", ", v.tensors.size(), " tensors>");
}
std::string Print(const std::string& v) {
  constexpr size_t kMaxPrinted = 64;
  const absl::string_view head = absl::string_view(v).substr(0, kMaxPrinted);
  return absl::StrCat("\"", absl::CHexEscape(head), v.size() > kMaxPrinted ? "\"..." : "\"");
}
template <typename T>
std::string Print(const std::complex<T>& v) {
  return absl::StrCat("(", v.real(), ",", v.imag(), ")");
}
template <typename T>
  requires std::is_integral_v<T>
std::string Print(T v) {
  return absl::StrCat(+v);
}
template <typename T>
  requires requires(T v) { v.value; }
std::string Print(T v) {
  return absl::StrCat(+v.value);
}

// NaN equals NaN of the same bits; 0 equals -0.
template <typename T>
bool SameNumber(T a, T b) {
  return a == b || std::memcmp(&a, &b, sizeof(T)) == 0;
}
bool SameNumber(Half a, Half b) { return a.bits == b.bits || ((a.bits | b.bits) & 0x7fff) == 0; }
bool SameNumber(Bfloat16 a, Bfloat16 b) {
  return a.bits == b.bits || ((a.bits | b.bits) & 0x7fff) == 0;
}
template <typename T>
bool SameNumber(std::complex<T> a, std::complex<T> b) {
  return SameNumber(a.real(), b.real()) && SameNumber(a.imag(), b.imag());
}

template <typename T>
bool SameNumbers(const Tensor& a, const Tensor& b) {
  const absl::Span<const T> x = a.raw<T>(), y = b.raw<T>();
  return std::equal(x.begin(), x.end(), y.begin(), [](T p, T q) { return SameNumber(p, q); });
}

bool SameHandle(const ResourceHandle& a, const ResourceHandle& b) {
  return a.device == b.device && a.container == b.container && a.name == b.name &&
         a.hash_code == b.hash_code && a.type_name == b.type_name && a.dtypes == b.dtypes &&
         a.shapes == b.shapes;
}

bool SameVariant(const Variant& a, const Variant& b) {
  return a.type_name == b.type_name && a.metadata == b.metadata && a.tensors == b.tensors;
}

template <typename T>
Status CopyObjects(const Tensor& from, Tensor* to) {
  try {
    const absl::Span<const T> in = from.raw<T>();
    std::copy(in.begin(), in.end(), to->mutable_raw<T>().begin());
  } catch (const std::bad_alloc&) {
    return NoMemory(from.dtype(), from.shape());
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<Tensor> Tensor::Allocate(DType dtype, const Shape& shape, Allocator* allocator) {
  const size_t stride = ElementStride(dtype);
  if (stride == 0 || IsRef(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Tensor: the dtype must be that of a value, got ", DTypeName(dtype)));
  }
  const size_t count = static_cast<size_t>(shape.num_elements());
  if (count == 0) return Tensor(dtype, shape, BufferRef(), nullptr);
  BufferRef buffer;
  switch (dtype) {
    case DT_STRING:
      buffer = ObjectBuffer<std::string>::Make(allocator, count);
      break;
    case DT_RESOURCE:
      buffer = ObjectBuffer<ResourceHandle>::Make(allocator, count);
      break;
    case DT_VARIANT:
      buffer = ObjectBuffer<Variant>::Make(allocator, count);
      break;
    default:
      // At most kMaxElements * 16 bytes: no overflow.
      buffer = Buffer::Allocate(allocator, count * stride);
  }
  if (!buffer) return NoMemory(dtype, shape);
  void* const data = buffer->data();
  return Tensor(dtype, shape, std::move(buffer), data);
}

StatusOr<Tensor> Tensor::Zeros(DType dtype, const Shape& shape, Allocator* allocator) {
  MR_ASSIGN_OR_RETURN(Tensor tensor, Allocate(dtype, shape, allocator));
  const absl::Span<char> bytes = tensor.mutable_bytes();
  if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
  return tensor;
}

StatusOr<Tensor> Tensor::FromBuffer(DType dtype, const Shape& shape, BufferRef buffer,
                                    size_t offset) {
  if (!IsMemcopyable(dtype) || IsRef(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Tensor: the dtype of raw bytes must have a fixed size, got ", DTypeName(dtype)));
  }
  if (shape.num_elements() == 0) return Tensor(dtype, shape, BufferRef(), nullptr);
  const size_t needed = static_cast<size_t>(shape.num_elements()) * DTypeSize(dtype);
  const size_t size = buffer ? buffer->size() : 0;
  if (offset > size || size - offset < needed) {
    return absl::InvalidArgumentError(absl::StrCat("Tensor: ", DTypeName(dtype), shape.ToString(),
                                                   " needs ", needed, " bytes at offset ", offset,
                                                   " of its buffer, got a buffer of ", size));
  }
  char* const data = static_cast<char*>(buffer->data()) + offset;
  if (reinterpret_cast<uintptr_t>(data) % ElementAlignment(dtype) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("Tensor: elements of ", DTypeName(dtype),
                                                   " must be aligned to ", ElementAlignment(dtype),
                                                   " bytes, got an address that is not"));
  }
  if (dtype == DT_BOOL) {
    // A bool of any other value is undefined behaviour in every kernel that reads it.
    const auto* bad =
        std::find_if(data, data + needed, [](char c) { return static_cast<uint8_t>(c) > 1; });
    if (bad != data + needed) {
      return absl::InvalidArgumentError(absl::StrCat("Tensor: a bool must be 0 or 1, got ",
                                                     static_cast<uint8_t>(*bad), " at element ",
                                                     bad - data));
    }
  }
  return Tensor(dtype, shape, std::move(buffer), data);
}

int64_t Tensor::TotalBytes() const {
  if (!has_value()) return 0;
  int64_t total = num_elements() * static_cast<int64_t>(ElementStride(dtype_));
  if (dtype_ == DT_STRING) {
    for (const std::string& s : raw<std::string>()) total += static_cast<int64_t>(s.size());
  } else if (dtype_ == DT_VARIANT) {
    for (const Variant& v : raw<Variant>()) {
      total += static_cast<int64_t>(v.type_name.size() + v.metadata.size());
      for (const Tensor& t : v.tensors) total += t.TotalBytes();
    }
  }
  return total;
}

absl::Span<const char> Tensor::bytes() const {
  return {static_cast<const char*>(data_),
          data_ == nullptr ? 0 : static_cast<size_t>(num_elements()) * DTypeSize(dtype_)};
}

absl::Span<char> Tensor::mutable_bytes() { return {static_cast<char*>(data_), bytes().size()}; }

StatusOr<Tensor> Tensor::Reshaped(const Shape& shape) const {
  if (!has_value() || shape.num_elements() != num_elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Tensor: shape ", shape.ToString(), " has ", shape.num_elements(),
                     " elements and must have as many as the tensor, got ",
                     has_value() ? num_elements() : 0, " (shape ", shape_.ToString(), ")"));
  }
  return Tensor(dtype_, shape, buffer_, data_);
}

Tensor Tensor::Rows(int64_t begin, int64_t end) const {
  assert(rank() >= 1 && 0 <= begin && begin <= end && end <= dim(0));
  absl::InlinedVector<int64_t, 4> dims(shape_.dims().begin(), shape_.dims().end());
  dims[0] = end - begin;
  // No larger than the shape it comes from, so it cannot fail.
  Shape shape = *Shape::Make(dims);
  if (shape.num_elements() == 0) return Tensor(dtype_, shape, BufferRef(), nullptr);
  const size_t row = static_cast<size_t>(shape_.NumElements(1, rank())) * ElementStride(dtype_);
  return Tensor(dtype_, shape, buffer_,
                static_cast<char*>(data_) + static_cast<size_t>(begin) * row);
}

StatusOr<Tensor> Tensor::Clone(Allocator* allocator) const {
  if (!has_value()) return Tensor();
  MR_ASSIGN_OR_RETURN(Tensor copy, Allocate(dtype_, shape_, allocator));
  switch (dtype_) {
    case DT_STRING:
      MR_RETURN_IF_ERROR(CopyObjects<std::string>(*this, &copy));
      break;
    case DT_RESOURCE:
      MR_RETURN_IF_ERROR(CopyObjects<ResourceHandle>(*this, &copy));
      break;
    case DT_VARIANT:
      MR_RETURN_IF_ERROR(CopyObjects<Variant>(*this, &copy));
      break;
    default: {
      const absl::Span<const char> from = bytes();
      if (!from.empty()) std::memcpy(copy.data_, from.data(), from.size());
    }
  }
  return copy;
}

Tensor Tensor::Reference(DType dtype, std::shared_ptr<Resource> resource) {
  assert(IsRef(dtype));
  return Tensor(dtype, Shape::Vector(0), ReferenceBuffer::Make(std::move(resource)), nullptr);
}

const std::shared_ptr<Resource>& Tensor::reference() const {
  assert(is_reference());
  return static_cast<const ReferenceBuffer*>(buffer_.get())->resource();
}

void tensor_internal::NoSuchRow(int64_t row, int64_t num_rows) {
  EndProgram(
      InvalidArgument("Tensor: the row of rows() must be in [0, ", num_rows, "), got ", row));
}

void Tensor::MakeUnique() {
  if (!buffer_ || BufferIsUnique()) return;
  StatusOr<Tensor> copy = Clone();
  if (!copy.ok()) throw std::bad_alloc();
  *this = *std::move(copy);
}

void Tensor::EndRead(const Status& status, const std::source_location& where) {
  if (where.line() == 0) EndProgram(status);
  EndProgram(Suffixed(status, absl::StrCat("; read at ", where.file_name(), ":", where.line())));
}

Status Tensor::WrongType(const char* accessor, DType wanted) const {
  return InvalidArgument(
      "Tensor: ", accessor, "<", wanted, ">() must be asked of a ", wanted, " tensor, got ",
      has_value() ? absl::StrCat(DTypeName(dtype_), " of shape ", shape_.ToString()) : "no value");
}

Status Tensor::NotOneElement(const char* accessor) const {
  return InvalidArgument("Tensor: ", accessor,
                         "() must be asked of a tensor of one element, got shape ", shape_);
}

Status Tensor::NoRows() const {
  return InvalidArgument("Tensor: rows() must be asked of a tensor of rank >= 1, got a scalar");
}

Status Tensor::Ragged(size_t row, size_t length, size_t wanted) {
  return InvalidArgument("Tensor::Of: row ", row, " must be as long as row 0, which has ", wanted,
                         " elements, got ", length);
}

int64_t Tensor::OffsetOf(std::initializer_list<int64_t> indices) const {
  const absl::Span<const int64_t> at(indices.begin(), indices.size());
  if (at.size() != shape_.dims().size()) {
    EndProgram(InvalidArgument("Tensor: at() must be given one index per dimension of shape ",
                               shape_, ", got ", at.size()));
  }
  int64_t offset = 0;
  for (size_t d = 0; d < at.size(); ++d) {
    const int64_t size = shape_.dims()[d];
    if (at[d] < 0 || at[d] >= size) {
      EndProgram(InvalidArgument("Tensor: index ", d, " of at() must be in [0, ", size, "), got ",
                                 at[d], " (shape ", shape_, ")"));
    }
    offset = offset * size + at[d];
  }
  return offset;
}

Tensor Tensor::Literal(DType dtype, std::initializer_list<size_t> dims) {
  const absl::InlinedVector<int64_t, 4> sizes(dims.begin(), dims.end());
  StatusOr<Tensor> tensor = Allocate(dtype, *Shape::Make(sizes));
  if (!tensor.ok()) throw std::bad_alloc();
  return *std::move(tensor);
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  return out << tensor.DebugString();
}

std::string Tensor::DebugString(int max_elements) const {
  if (!has_value()) return "<no value>";
  std::string text = absl::StrCat(DTypeName(dtype_), shape_.ToString(), ":");
  const size_t shown = static_cast<size_t>(
      std::min<int64_t>(num_elements(), static_cast<int64_t>(std::max(0, max_elements))));
  ForPrintable(dtype_, [&]<typename T>(const T*) {
    for (const T& value : raw<T>().subspan(0, shown)) absl::StrAppend(&text, " ", Print(value));
  });
  if (static_cast<int64_t>(shown) < num_elements()) text += " ...";
  return text;
}

bool operator==(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  if (!a.has_value() || a.num_elements() == 0) return true;
  if (a.raw_data() == b.raw_data()) return true;
  switch (a.dtype()) {
    case DT_STRING:
      return a.raw<std::string>() == b.raw<std::string>();
    case DT_RESOURCE: {
      const auto x = a.raw<ResourceHandle>(), y = b.raw<ResourceHandle>();
      return std::equal(x.begin(), x.end(), y.begin(), SameHandle);
    }
    case DT_VARIANT: {
      const auto x = a.raw<Variant>(), y = b.raw<Variant>();
      return std::equal(x.begin(), x.end(), y.begin(), SameVariant);
    }
    case DT_FLOAT:
      return SameNumbers<float>(a, b);
    case DT_DOUBLE:
      return SameNumbers<double>(a, b);
    case DT_HALF:
      return SameNumbers<Half>(a, b);
    case DT_BFLOAT16:
      return SameNumbers<Bfloat16>(a, b);
    case DT_COMPLEX64:
      return SameNumbers<std::complex<float>>(a, b);
    case DT_COMPLEX128:
      return SameNumbers<std::complex<double>>(a, b);
    default:
      return std::memcmp(a.raw_data(), b.raw_data(), a.bytes().size()) == 0;
  }
}

}  // namespace millrace
