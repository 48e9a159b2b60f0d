// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/json_replies.h"

#include <cstddef>
#include <type_traits>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "rapidjson/prettywriter.h"
#include "rapidjson/rapidjson.h"
#include "rapidjson/stringbuffer.h"
#include "serving/aliased_tensor.h"
#include "serving/rest/json_scan.h"

namespace millrace {
namespace {

using Writer = rapidjson::PrettyWriter<rapidjson::StringBuffer>;

void WriteString(Writer& writer, absl::string_view text) {
  writer.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}

void WriteKey(Writer& writer, absl::string_view text) {
  writer.Key(text.data(), static_cast<rapidjson::SizeType>(text.size()));
}

template <typename T>
void WriteValue(Writer& writer, const T& value, bool as_base64) {
  if constexpr (std::is_same_v<T, std::string>) {
    if (!as_base64) return WriteString(writer, value);
    writer.StartObject();
    writer.Key("b64");
    WriteString(writer, absl::Base64Escape(value));
    writer.EndObject();
  } else if constexpr (std::is_floating_point_v<T>) {
    char text[kMaxJsonDecimal];
    const size_t size = WriteJsonDecimal(value, text);
    writer.RawValue(text, size, rapidjson::kNumberType);
  } else if constexpr (std::is_same_v<T, bool>) {
    writer.Bool(value);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    writer.Uint64(value);
  } else {
    writer.Int64(value);
  }
}

// Calls fn.operator()<T>() for the dtypes that have a JSON form; false for others.
template <typename Fn>
bool ForValuesOf(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DT_FLOAT:
      fn.template operator()<float>();
      return true;
    case DT_DOUBLE:
      fn.template operator()<double>();
      return true;
    case DT_INT8:
      fn.template operator()<int8_t>();
      return true;
    case DT_INT16:
      fn.template operator()<int16_t>();
      return true;
    case DT_INT32:
      fn.template operator()<int32_t>();
      return true;
    case DT_INT64:
      fn.template operator()<int64_t>();
      return true;
    case DT_UINT8:
      fn.template operator()<uint8_t>();
      return true;
    case DT_UINT16:
      fn.template operator()<uint16_t>();
      return true;
    case DT_UINT32:
      fn.template operator()<uint32_t>();
      return true;
    case DT_UINT64:
      fn.template operator()<uint64_t>();
      return true;
    case DT_BOOL:
      fn.template operator()<bool>();
      return true;
    case DT_STRING:
      fn.template operator()<std::string>();
      return true;
    default:
      return false;
  }
}

// Writes an output's values in row-major order, one after the other, with the lists around them.
class TensorWriter {
 public:
  TensorWriter(const AliasedTensor& output, rapidjson::StringBuffer* buffer, int64_t max_bytes)
      : tensor_(output.tensor),
        as_base64_(absl::EndsWith(output.alias, "_bytes")),
        buffer_(buffer),
        max_bytes_(max_bytes) {}

  // The next value of the dimensions from `dim` on: a list of lists, or one element. Recursion ends
  // at the rank, of at most Shape::kMaxRank.
  Status Write(Writer& writer, int dim) {
    if (static_cast<int64_t>(buffer_->GetSize()) > max_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("JSON reply: it may have at most ", max_bytes_, " bytes, got more"));
    }
    if (dim + 1 < tensor_.rank()) {
      writer.StartArray();
      for (int64_t i = 0; i < tensor_.dim(dim); ++i) MR_RETURN_IF_ERROR(Write(writer, dim + 1));
      writer.EndArray();
      return absl::OkStatus();
    }
    const bool is_list = dim < tensor_.rank();
    const int64_t size = is_list ? tensor_.dim(dim) : 1;
    if (is_list) writer.StartArray();
    const bool has_form = ForValuesOf(tensor_.dtype(), [&]<typename T>() {
      const T* values = static_cast<const T*>(tensor_.raw_data()) + next_;
      for (int64_t i = 0; i < size; ++i) WriteValue(writer, values[i], as_base64_);
    });
    if (!has_form && size > 0) {
      return InvalidArgument("Failed to write JSON value for tensor type: ",
                             DTypeName(tensor_.dtype()));
    }
    next_ += size;
    if (is_list) writer.EndArray();
    return absl::OkStatus();
  }

 private:
  const Tensor& tensor_;
  const bool as_base64_;
  rapidjson::StringBuffer* const buffer_;
  const int64_t max_bytes_;
  int64_t next_ = 0;
};

std::string Text(const rapidjson::StringBuffer& buffer) {
  return std::string(buffer.GetString(), buffer.GetSize());
}

StatusOr<int64_t> BatchSize(absl::Span<const AliasedTensor> outputs) {
  int64_t batch_size = -1;
  for (const AliasedTensor& output : outputs) {
    if (output.tensor.rank() == 0) {
      return InvalidArgument("Tensor name: ", output.alias, " has no shape information ");
    }
    const int64_t size = output.tensor.dim(0);
    if (batch_size >= 0 && batch_size != size) {
      return InvalidArgument("Tensor name: ", output.alias, " has inconsistent batch size: ", size,
                             " expecting: ", batch_size);
    }
    batch_size = size;
  }
  return batch_size;
}

StatusOr<std::string> RowReply(absl::Span<const AliasedTensor> outputs, int64_t max_bytes) {
  MR_ASSIGN_OR_RETURN(const int64_t batch_size, BatchSize(outputs));
  rapidjson::StringBuffer buffer;
  Writer writer(buffer);
  std::vector<TensorWriter> tensors;
  tensors.reserve(outputs.size());
  for (const AliasedTensor& output : outputs) tensors.emplace_back(output, &buffer, max_bytes);
  writer.StartObject();
  writer.Key("predictions");
  writer.StartArray();
  const bool of_objects = outputs.size() > 1;
  for (int64_t row = 0; row < batch_size; ++row) {
    if (of_objects) writer.StartObject();
    writer.SetFormatOptions(rapidjson::kFormatSingleLineArray);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (of_objects) WriteKey(writer, outputs[i].alias);
      MR_RETURN_IF_ERROR(tensors[i].Write(writer, 1));
    }
    writer.SetFormatOptions(rapidjson::kFormatDefault);
    if (of_objects) writer.EndObject();
  }
  writer.EndArray();
  writer.EndObject();
  return Text(buffer);
}

StatusOr<std::string> ColumnarReply(absl::Span<const AliasedTensor> outputs, int64_t max_bytes) {
  rapidjson::StringBuffer buffer;
  Writer writer(buffer);
  writer.StartObject();
  writer.Key("outputs");
  const bool of_objects = outputs.size() > 1;
  if (of_objects) writer.StartObject();
  for (const AliasedTensor& output : outputs) {
    if (of_objects) WriteKey(writer, output.alias);
    MR_RETURN_IF_ERROR(TensorWriter(output, &buffer, max_bytes).Write(writer, 0));
  }
  if (of_objects) writer.EndObject();
  writer.EndObject();
  return Text(buffer);
}

}  // namespace

StatusOr<std::string> PredictReply(absl::Span<const AliasedTensor> outputs, JsonForm form,
                                   int64_t max_bytes) {
  if (outputs.empty()) return InvalidArgument("Cannot convert empty tensor map to JSON");
  return form == JsonForm::kRow ? RowReply(outputs, max_bytes) : ColumnarReply(outputs, max_bytes);
}

StatusOr<std::string> ClassifyReply(absl::Span<const std::vector<ClassAndScore>> examples) {
  if (examples.empty()) {
    return InvalidArgument("Cannot convert empty ClassificationResults to JSON");
  }
  rapidjson::StringBuffer buffer;
  Writer writer(buffer);
  writer.StartObject();
  writer.Key("results");
  writer.StartArray();
  for (const std::vector<ClassAndScore>& classes : examples) {
    writer.SetFormatOptions(rapidjson::kFormatSingleLineArray);
    writer.StartArray();
    for (const ClassAndScore& one : classes) {
      writer.StartArray();
      WriteString(writer, one.label);
      WriteValue(writer, one.score, false);
      writer.EndArray();
    }
    writer.EndArray();
    writer.SetFormatOptions(rapidjson::kFormatDefault);
  }
  writer.EndArray();
  writer.EndObject();
  return Text(buffer);
}

StatusOr<std::string> RegressReply(absl::Span<const float> values) {
  if (values.empty()) return InvalidArgument("Cannot convert empty RegressionResults to JSON");
  rapidjson::StringBuffer buffer;
  Writer writer(buffer);
  writer.StartObject();
  writer.Key("results");
  writer.SetFormatOptions(rapidjson::kFormatSingleLineArray);
  writer.StartArray();
  for (const float value : values) WriteValue(writer, value, false);
  writer.EndArray();
  writer.EndObject();
  return Text(buffer);
}

std::string ErrorReply(const Status& error) {
  rapidjson::StringBuffer buffer;
  Writer writer(buffer);
  writer.StartObject();
  writer.Key("error");
  WriteString(writer, absl::string_view(error.message().data(), error.message().size()));
  writer.EndObject();
  return Text(buffer);
}

}  // namespace millrace
