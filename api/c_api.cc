// SPDX-License-Identifier: Apache-2.0
//
// Statuses, bytes, tensors, and what the library has.
#include "api/c_api.h"

#include <algorithm>
#include <array>

#include "api/c_api_handle.h"
#include "api/c_api_internal.h"
#include "core/buffer.h"
#include "core/dtype.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/version.h"
#include "graph/op_registry.h"
#include "proto/op_def.pb.h"
#include "runtime/op_library.h"

namespace millrace::c_api {

// --- The border ----------------------------------------------------------------------------------

void StatusObject::Set(const Status& status) noexcept {
  code = static_cast<MillraceCode>(status.code());
  try {
    message = std::string(status.message());
  } catch (...) {
    message.clear();
  }
}

StatusObject* StatusFor(MillraceStatus* status, absl::string_view where) noexcept {
  StatusObject* const object = Handles<StatusObject>::Find(status);
  if (object == nullptr && status != nullptr) SayNoHandle(where, StatusObject::kName);
  return object;
}

MillraceCode Told(StatusObject* told, const Status& status) noexcept {
  if (told != nullptr) told->Set(status);
  return static_cast<MillraceCode>(status.code());
}

void SayNoHandle(absl::string_view where, absl::string_view kind) noexcept {
  NoExceptions("", [&]() -> Status {
    LogError(where, ": must be given a living ", kind,
             ", got one that was deleted or is something else; it is left alone");
    return absl::OkStatus();
  }).IgnoreError();
}

// --- Arguments -----------------------------------------------------------------------------------

Status CheckText(const char* text, absl::string_view where, absl::string_view what) {
  if (text != nullptr) return absl::OkStatus();
  return InvalidArgument(where, ": ", what, " must be a text, got NULL");
}

Status BadArray(int count, absl::string_view where, absl::string_view what) {
  if (count < 0) {
    return InvalidArgument(where, ": the number of ", what, " must be >= 0, got ", count);
  }
  return InvalidArgument(where, ": ", what, " must have ", count, " elements, got NULL");
}

StatusOr<std::vector<std::string>> TextsOf(const char* const* texts, int count,
                                           absl::string_view where, absl::string_view what) {
  return StringsOf(texts, nullptr, count, where, what);
}

StatusOr<std::vector<std::string>> StringsOf(const char* const* texts, const size_t* sizes,
                                             int count, absl::string_view where,
                                             absl::string_view what) {
  MR_RETURN_IF_ERROR(CheckArray(texts, count, where, what));
  std::vector<std::string> result;
  result.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const bool is_empty = sizes != nullptr && sizes[i] == 0;
    if (texts[i] == nullptr && !is_empty) {
      return InvalidArgument(where, ": ", what, "[", i, "] must be a text, got NULL");
    }
    if (is_empty) {
      result.emplace_back();
    } else if (sizes != nullptr) {
      result.emplace_back(texts[i], sizes[i]);
    } else {
      result.emplace_back(texts[i]);
    }
  }
  return result;
}

StatusOr<absl::string_view> BytesOf(const void* data, size_t size, absl::string_view where,
                                    absl::string_view what) {
  if (data == nullptr && size > 0) {
    return InvalidArgument(where, ": ", what, " must be ", size, " bytes, got NULL");
  }
  // What protobuf can read at all.
  constexpr size_t kMaxSize = (size_t{1} << 31) - 1;
  if (size > kMaxSize) {
    return InvalidArgument(where, ": ", what, " must be at most ", kMaxSize, " bytes, got ", size);
  }
  return absl::string_view(static_cast<const char*>(data), size);
}

StatusOr<DType> DTypeOfNumber(MillraceDType dtype, absl::string_view where) {
  const StatusOr<DType> known = DTypeFromNumber(dtype);
  if (!known.ok() || *known == DT_INVALID || IsRef(*known)) {
    return InvalidArgument(where, ": the dtype must be one of MILLRACE_FLOAT (", MILLRACE_FLOAT,
                           ") to MILLRACE_UINT64 (", MILLRACE_UINT64, "), got ", dtype);
  }
  return *known;
}

StatusOr<Shape> ShapeOf(const int64_t* dims, int num_dims, absl::string_view where) {
  MR_RETURN_IF_ERROR(CheckArray(dims, num_dims, where, "dims"));
  StatusOr<Shape> shape = Shape::Make(absl::MakeConstSpan(dims, static_cast<size_t>(num_dims)));
  if (!shape.ok()) return Prefixed(where, shape.status());
  return shape;
}

StatusOr<PartialShape> PartialShapeOf(const int64_t* dims, int num_dims, absl::string_view where) {
  if (num_dims == -1) return PartialShape();
  MR_RETURN_IF_ERROR(CheckArray(dims, num_dims, where, "dims"));
  StatusOr<PartialShape> shape =
      PartialShape::Make(absl::MakeConstSpan(dims, static_cast<size_t>(num_dims)));
  if (!shape.ok()) return Prefixed(where, shape.status());
  return shape;
}

StatusOr<int> WriteShape(const PartialShape& shape, int64_t* dims, int max_dims,
                         absl::string_view where) {
  MR_RETURN_IF_ERROR(CheckArray(dims, max_dims, where, "dims"));
  if (!shape.has_rank()) return -1;
  for (int i = 0; i < std::min(max_dims, shape.rank()); ++i) dims[i] = shape.dim(i);
  return shape.rank();
}

Status BadOptions(absl::string_view where, absl::string_view what, size_t wanted, size_t got) {
  return InvalidArgument(where, ": struct_size of ", what, " must be its sizeof (", wanted,
                         " here), got ", got);
}

Status TensorsOfHandles::Take(MillraceTensor* const* handles, int count, absl::string_view where,
                              absl::string_view what) {
  MR_RETURN_IF_ERROR(CheckArray(handles, count, where, what));
  if (count > 1) copies_.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const TensorObject* const object = Handles<TensorObject>::Find(handles[i]);
    if (ABSL_PREDICT_FALSE(object == nullptr)) {
      return Handles<TensorObject>::Refusal(handles[i], where, absl::StrCat(what, "[", i, "]"));
    }
    if (count == 1) {
      tensors_ = absl::MakeConstSpan(&object->tensor, 1);
    } else {
      copies_.push_back(object->tensor);
    }
  }
  if (count > 1) tensors_ = copies_;
  return absl::OkStatus();
}

Status GiveTensors(absl::Span<Tensor> tensors, MillraceTensor** results) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    try {
      results[i] = Handles<TensorObject>::New({std::move(tensors[i])});
    } catch (...) {
      for (size_t made = 0; made < i; ++made) {
        Handles<TensorObject>::Delete(std::exchange(results[made], nullptr));
      }
      throw;
    }
  }
  return absl::OkStatus();
}

namespace {

// Names that stay as long as the process.
const char* CodeName(int code) {
  constexpr std::array<const char*, 17> kNames = {"OK",
                                                  "CANCELLED",
                                                  "UNKNOWN",
                                                  "INVALID_ARGUMENT",
                                                  "DEADLINE_EXCEEDED",
                                                  "NOT_FOUND",
                                                  "ALREADY_EXISTS",
                                                  "PERMISSION_DENIED",
                                                  "RESOURCE_EXHAUSTED",
                                                  "FAILED_PRECONDITION",
                                                  "ABORTED",
                                                  "OUT_OF_RANGE",
                                                  "UNIMPLEMENTED",
                                                  "INTERNAL",
                                                  "UNAVAILABLE",
                                                  "DATA_LOSS",
                                                  "UNAUTHENTICATED"};
  return code < 0 || static_cast<size_t>(code) >= kNames.size() ? nullptr
                                                                : kNames[static_cast<size_t>(code)];
}

const char* NameOfDType(int number) {
  static const auto* const names = [] {
    auto* all = new std::array<std::string, kNumDTypes + 1>;
    for (int i = 1; i <= kNumDTypes; ++i) {
      (*all)[static_cast<size_t>(i)] = DTypeName(static_cast<DType>(i));
    }
    return all;
  }();
  return number < 1 || number > kNumDTypes ? nullptr
                                           : (*names)[static_cast<size_t>(number)].c_str();
}

// Of what a caller may make: bytes or strings.
Status CheckMakeable(DType dtype, absl::string_view where) {
  if (IsMemcopyable(dtype) || dtype == DT_STRING) return absl::OkStatus();
  return InvalidArgument(
      where, ": the elements of a tensor must be numbers, bools or strings, got ", dtype);
}

Status CheckSize(DType dtype, const Shape& shape, const void* data, size_t size,
                 absl::string_view where) {
  if (!IsMemcopyable(dtype)) {
    return InvalidArgument(where, ": elements given as bytes must have a fixed size, got ", dtype,
                           dtype == DT_STRING ? "; use millrace_tensor_from_strings" : "");
  }
  const size_t wanted = static_cast<size_t>(shape.num_elements()) * DTypeSize(dtype);
  if (size != wanted) {
    return InvalidArgument(where, ": ", dtype, shape, " must have ", wanted, " bytes, got ", size);
  }
  if (data == nullptr && size > 0) {
    return InvalidArgument(where, ": data must be ", size, " bytes, got NULL");
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::c_api

using millrace::InvalidArgument;
using millrace::OutOfRange;
using millrace::Status;
using millrace::StatusOr;
using namespace millrace::c_api;  // NOLINT: the objects behind the handles

const char* millrace_version(void) { return millrace::kVersion; }

// --- Status --------------------------------------------------------------------------------------

MillraceStatus* millrace_status_new(void) {
  try {
    return Handles<StatusObject>::New({});
  } catch (...) {
    return nullptr;
  }
}

void millrace_status_delete(MillraceStatus* status) {
  DeleteHandle<StatusObject>(status, __func__);
}

MillraceCode millrace_status_code(const MillraceStatus* status) {
  if (status == nullptr) return MILLRACE_OK;
  const StatusObject* const object = Handles<StatusObject>::Find(status);
  return object == nullptr ? MILLRACE_INVALID_ARGUMENT : object->code;
}

const char* millrace_status_message(const MillraceStatus* status) {
  if (status == nullptr) return "";
  const StatusObject* const object = Handles<StatusObject>::Find(status);
  if (object == nullptr) return "the status must be a living one, got one that was deleted";
  if (object->code != MILLRACE_OK && object->message.empty()) return CodeName(object->code);
  return object->message.c_str();
}

void millrace_status_clear(MillraceStatus* status) {
  StatusObject* const object = StatusFor(status, __func__);
  if (object != nullptr) object->Set(absl::OkStatus());
}

void millrace_status_set(MillraceStatus* status, MillraceCode code, const char* message) {
  StatusObject* const object = StatusFor(status, __func__);
  if (object == nullptr) return;
  const bool is_code = CodeName(code) != nullptr;
  millrace::NoExceptions(__func__, [&]() -> Status {
    object->Set(Status(is_code ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                       message == nullptr ? "" : message));
    return absl::OkStatus();
  }).IgnoreError();
}

const char* millrace_code_name(MillraceCode code) { return CodeName(code); }

// --- Bytes and lists of texts --------------------------------------------------------------------

const void* millrace_buffer_data(const MillraceBuffer* buffer) {
  const BufferObject* const object = Handles<BufferObject>::Find(buffer);
  return object == nullptr ? nullptr : object->bytes.c_str();
}

size_t millrace_buffer_size(const MillraceBuffer* buffer) {
  const BufferObject* const object = Handles<BufferObject>::Find(buffer);
  return object == nullptr ? 0 : object->bytes.size();
}

void millrace_buffer_delete(MillraceBuffer* buffer) {
  DeleteHandle<BufferObject>(buffer, __func__);
}

int millrace_strings_count(const MillraceStrings* strings) {
  const StringsObject* const object = Handles<StringsObject>::Find(strings);
  return object == nullptr ? 0 : static_cast<int>(object->strings.size());
}

const char* millrace_strings_get(const MillraceStrings* strings, int index) {
  const StringsObject* const object = Handles<StringsObject>::Find(strings);
  if (object == nullptr || index < 0 || static_cast<size_t>(index) >= object->strings.size()) {
    return nullptr;
  }
  return object->strings[static_cast<size_t>(index)].c_str();
}

void millrace_strings_delete(MillraceStrings* strings) {
  DeleteHandle<StringsObject>(strings, __func__);
}

// --- Tensors -------------------------------------------------------------------------------------

size_t millrace_dtype_size(MillraceDType dtype) {
  return NameOfDType(dtype) == nullptr ? 0
                                       : millrace::DTypeSize(static_cast<millrace::DType>(dtype));
}

const char* millrace_dtype_name(MillraceDType dtype) { return NameOfDType(dtype); }

MillraceTensor* millrace_tensor_new(MillraceDType dtype, const int64_t* dims, int num_dims,
                                    MillraceStatus* status) {
  return CallFor<MillraceTensor*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceTensor*> {
        MR_ASSIGN_OR_RETURN(const millrace::DType type, DTypeOfNumber(dtype, where));
        MR_RETURN_IF_ERROR(CheckMakeable(type, where));
        MR_ASSIGN_OR_RETURN(const millrace::Shape shape, ShapeOf(dims, num_dims, where));
        MR_ASSIGN_OR_RETURN(millrace::Tensor tensor, millrace::Tensor::Zeros(type, shape));
        return Handles<TensorObject>::New({std::move(tensor)});
      });
}

MillraceTensor* millrace_tensor_from_data(MillraceDType dtype, const int64_t* dims, int num_dims,
                                          const void* data, size_t size, MillraceStatus* status) {
  return CallFor<MillraceTensor*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceTensor*> {
        MR_ASSIGN_OR_RETURN(const millrace::DType type, DTypeOfNumber(dtype, where));
        MR_ASSIGN_OR_RETURN(const millrace::Shape shape, ShapeOf(dims, num_dims, where));
        MR_RETURN_IF_ERROR(CheckSize(type, shape, data, size, where));
        MR_ASSIGN_OR_RETURN(millrace::Tensor tensor, millrace::Tensor::Allocate(type, shape));
        if (size > 0) std::memcpy(tensor.mutable_raw_data(), data, size);
        // The rules of bytes that came from outside (bools) stand there.
        MR_ASSIGN_OR_RETURN(
            tensor, millrace::Tensor::FromBuffer(type, shape, tensor.buffer(), /*offset=*/0));
        return Handles<TensorObject>::New({std::move(tensor)});
      });
}

MillraceTensor* millrace_tensor_wrap(MillraceDType dtype, const int64_t* dims, int num_dims,
                                     void* data, size_t size, MillraceRelease release, void* arg,
                                     MillraceStatus* status) {
  return CallFor<MillraceTensor*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceTensor*> {
        MR_ASSIGN_OR_RETURN(const millrace::DType type, DTypeOfNumber(dtype, where));
        MR_ASSIGN_OR_RETURN(const millrace::Shape shape, ShapeOf(dims, num_dims, where));
        MR_RETURN_IF_ERROR(CheckSize(type, shape, data, size, where));
        // Until everything has succeeded the memory is the caller's.
        const auto is_ours = std::make_shared<bool>(false);
        const millrace::BufferRef buffer =
            millrace::Buffer::External(data, size, [is_ours, release, data, size, arg] {
              if (*is_ours && release != nullptr) release(data, size, arg);
            });
        StatusOr<millrace::Tensor> tensor =
            millrace::Tensor::FromBuffer(type, shape, buffer, /*offset=*/0);
        if (!tensor.ok()) return millrace::Prefixed(where, tensor.status());
        MillraceTensor* const handle = Handles<TensorObject>::New({*std::move(tensor)});
        // A tensor without elements holds no buffer: then `buffer` is the last one, and lets go
        // here.
        *is_ours = true;
        return handle;
      });
}

MillraceTensor* millrace_tensor_from_strings(const int64_t* dims, int num_dims,
                                             const char* const* strings, const size_t* sizes,
                                             int count, MillraceStatus* status) {
  return CallFor<MillraceTensor*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceTensor*> {
        MR_ASSIGN_OR_RETURN(const millrace::Shape shape, ShapeOf(dims, num_dims, where));
        MR_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                            StringsOf(strings, sizes, count, where, "strings"));
        StatusOr<millrace::Tensor> tensor =
            millrace::Tensor::FromValues<std::string>(shape, absl::MakeConstSpan(texts));
        if (!tensor.ok()) return millrace::Prefixed(where, tensor.status());
        return Handles<TensorObject>::New({*std::move(tensor)});
      });
}

MillraceTensor* millrace_tensor_share(const MillraceTensor* tensor, MillraceStatus* status) {
  return CallFor<MillraceTensor*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceTensor*> {
        MR_ASSIGN_OR_RETURN(const TensorObject* object,
                            Handles<TensorObject>::Get(tensor, where, "tensor"));
        return Handles<TensorObject>::New({object->tensor});
      });
}

void millrace_tensor_delete(MillraceTensor* tensor) {
  DeleteHandle<TensorObject>(tensor, __func__);
}

MillraceDType millrace_tensor_dtype(const MillraceTensor* tensor) {
  const TensorObject* const object = Handles<TensorObject>::Find(tensor);
  return object == nullptr ? 0 : static_cast<MillraceDType>(object->tensor.dtype());
}

int millrace_tensor_num_dims(const MillraceTensor* tensor) {
  const TensorObject* const object = Handles<TensorObject>::Find(tensor);
  return object == nullptr ? -1 : object->tensor.rank();
}

int64_t millrace_tensor_dim(const MillraceTensor* tensor, int i) {
  const TensorObject* const object = Handles<TensorObject>::Find(tensor);
  return object == nullptr || i < 0 || i >= object->tensor.rank() ? -1 : object->tensor.dim(i);
}

int64_t millrace_tensor_num_elements(const MillraceTensor* tensor) {
  const TensorObject* const object = Handles<TensorObject>::Find(tensor);
  return object == nullptr ? -1 : object->tensor.num_elements();
}

size_t millrace_tensor_size(const MillraceTensor* tensor) {
  const TensorObject* const object = Handles<TensorObject>::Find(tensor);
  return object == nullptr ? 0 : object->tensor.bytes().size();
}

const void* millrace_tensor_data(const MillraceTensor* tensor) {
  const TensorObject* const object = Handles<TensorObject>::Find(tensor);
  if (object == nullptr || !millrace::IsMemcopyable(object->tensor.dtype())) return nullptr;
  return object->tensor.raw_data();
}

void* millrace_tensor_mutable_data(MillraceTensor* tensor, MillraceStatus* status) {
  return CallFor<void*>(status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<void*> {
    MR_ASSIGN_OR_RETURN(TensorObject * object, Handles<TensorObject>::Get(tensor, where, "tensor"));
    if (!millrace::IsMemcopyable(object->tensor.dtype())) {
      return InvalidArgument(where, ": elements to be written must have a fixed size, got ",
                             object->tensor.dtype());
    }
    object->tensor.MakeUnique();
    return object->tensor.mutable_raw_data();
  });
}

const char* millrace_tensor_string(const MillraceTensor* tensor, int64_t index, size_t* size,
                                   MillraceStatus* status) {
  if (size != nullptr) *size = 0;
  return CallFor<const char*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<const char*> {
        MR_ASSIGN_OR_RETURN(const TensorObject* object,
                            Handles<TensorObject>::Get(tensor, where, "tensor"));
        const millrace::Tensor& value = object->tensor;
        if (value.dtype() != millrace::DT_STRING) {
          return InvalidArgument(where, ": the tensor must be of strings, got ", value.dtype(),
                                 value.shape());
        }
        if (index < 0 || index >= value.num_elements()) {
          return OutOfRange(where, ": index must be in [0,", value.num_elements(), "), got ",
                            index);
        }
        const std::string& text = value.raw<std::string>()[static_cast<size_t>(index)];
        if (size != nullptr) *size = text.size();
        return text.c_str();
      });
}

// --- What the library has ------------------------------------------------------------------------

MillraceStrings* millrace_op_names(MillraceStatus* status) {
  return CallFor<MillraceStrings*>(status, __func__, nullptr,
                                   [&](absl::string_view) -> StatusOr<MillraceStrings*> {
                                     StringsObject names;
                                     for (const millrace::OpEntry* entry : millrace::AllOps()) {
                                       names.strings.push_back(entry->def.name());
                                     }
                                     return Handles<StringsObject>::New(std::move(names));
                                   });
}

MillraceBuffer* millrace_op_def(const char* op, MillraceStatus* status) {
  return CallFor<MillraceBuffer*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceBuffer*> {
        MR_RETURN_IF_ERROR(CheckText(op, where, "op"));
        MR_ASSIGN_OR_RETURN(const millrace::OpEntry* entry, millrace::FindOp(op));
        return Handles<BufferObject>::New({entry->def.SerializeAsString()});
      });
}

MillraceStrings* millrace_load_op_library(const char* path, MillraceStatus* status) {
  return CallFor<MillraceStrings*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceStrings*> {
        MR_RETURN_IF_ERROR(CheckText(path, where, "path"));
        MR_ASSIGN_OR_RETURN(std::vector<std::string> ops, millrace::LoadOpLibrary(path));
        return Handles<StringsObject>::New({std::move(ops)});
      });
}
