// SPDX-License-Identifier: Apache-2.0
#include "estimator/prediction_shard.h"

#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "core/crc32c.h"
#include "core/dtype.h"
#include "core/record.h"
#include "data/example_builder.h"
#include "formats/json_value.h"

namespace millrace {
namespace {

// Counts what goes through.
class CountingFile : public WritableFile {
 public:
  CountingFile(std::unique_ptr<WritableFile> file, ShardContent* content)
      : file_(std::move(file)), content_(content) {}
  Status Append(absl::string_view data) override {
    content_->bytes += static_cast<int64_t>(data.size());
    content_->crc32c = ExtendCrc32c(content_->crc32c, data);
    return file_->Append(data);
  }
  Status Flush() override { return file_->Flush(); }
  Status Sync() override { return file_->Sync(); }
  Status Close() override { return file_->Close(); }

 private:
  const std::unique_ptr<WritableFile> file_;
  ShardContent* const content_;
};

template <typename T>
void AppendNested(absl::Span<const int64_t> dims, const T** next, std::string* out) {
  if (dims.empty()) {
    AppendJson(**next, out);
    ++*next;
    return;
  }
  out->push_back('[');
  for (int64_t i = 0; i < dims[0]; ++i) {
    if (i > 0) out->push_back(',');
    AppendNested(dims.subspan(1), next, out);
  }
  out->push_back(']');
}

// Calls `f` with a T of the tensor's; false: it is of a dtype that has no form here.
template <typename... Ts, typename F>
bool WithType(DType dtype, const F& f) {
  const auto one = [&]<typename T>() {
    if (dtype != DTypeOf<T>) return false;
    f.template operator()<T>();
    return true;
  };
  return (one.template operator()<Ts>() || ...);
}
template <typename F>
bool WithWritableType(DType dtype, const F& f) {
  return WithType<float, double, Half, Bfloat16, int8_t, uint8_t, int16_t, uint16_t, int32_t,
                  uint32_t, int64_t, uint64_t, bool, std::string>(dtype, f);
}

// The number of rows; InvalidArgument where there is not one.
StatusOr<int64_t> RowsOf(absl::Span<const std::string> names, absl::Span<const Tensor> values) {
  int64_t rows = -1;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!IsJsonText(names[i])) {
      return InvalidArgument("Predictions: a name must be text to be written, got '",
                             absl::CHexEscape(names[i]), "'");
    }
    if (!WithWritableType(values[i].dtype(), []<typename T>() {})) {
      return Unimplemented("Predictions: '", names[i],
                           "' must be numbers, bools or strings to be written, got ",
                           values[i].dtype());
    }
    if (values[i].rank() == 0) {
      return InvalidArgument("Predictions: '", names[i],
                             "' must have a row per example, got a scalar");
    }
    const int64_t these = values[i].dim(0);
    if (rows >= 0 && these != rows) {
      return InvalidArgument("Predictions: all must have as many rows, got ", rows, " of '",
                             names[0], "' and ", these, " of '", names[i], "'");
    }
    rows = these;
  }
  return rows < 0 ? 0 : rows;
}

// The values of row `row` of a tensor that has some.
template <typename T>
absl::Span<const T> RowOf(const Tensor& tensor, int64_t row) {
  const auto all = tensor.flat<T>();
  const size_t size = all.size() / static_cast<size_t>(tensor.dim(0));
  return absl::Span<const T>(all.data(), all.size()).subspan(static_cast<size_t>(row) * size, size);
}

class JsonLines : public PredictionShardWriter {
 public:
  explicit JsonLines(std::unique_ptr<WritableFile> file)
      : file_(std::make_unique<CountingFile>(std::move(file), &content_)) {}

  Status Write(absl::Span<const std::string> names, absl::Span<const Tensor> values) override {
    MR_ASSIGN_OR_RETURN(const int64_t rows, RowsOf(names, values));
    for (int64_t row = 0; row < rows; ++row) {
      text_.push_back('{');
      for (size_t i = 0; i < values.size(); ++i) {
        if (i > 0) text_.push_back(',');
        AppendJson(names[i], &text_);
        text_.push_back(':');
        const Tensor& tensor = values[i];
        const auto add = [&]<typename T>() {
          const absl::Span<const T> flat = RowOf<T>(tensor, row);
          // Nothing is nothing, however many dimensions it has.
          if (flat.empty()) {
            text_.append("[]");
            return;
          }
          const T* next = flat.data();
          AppendNested(absl::MakeConstSpan(tensor.shape().dims()).subspan(1), &next, &text_);
        };
        WithWritableType(tensor.dtype(), add);
      }
      text_.append("}\n");
      if (text_.size() >= kBuffer) MR_RETURN_IF_ERROR(Append());
    }
    content_.rows += rows;
    return absl::OkStatus();
  }
  Status Flush() override {
    MR_RETURN_IF_ERROR(Append());
    return file_->Flush();
  }
  StatusOr<ShardContent> Finish() override {
    MR_RETURN_IF_ERROR(Append());
    MR_RETURN_IF_ERROR(file_->Sync());
    MR_RETURN_IF_ERROR(file_->Close());
    return content_;
  }

 private:
  static constexpr size_t kBuffer = 64 << 10;
  Status Append() {
    const Status status = file_->Append(text_);
    text_.clear();
    return status;
  }

  ShardContent content_;
  const std::unique_ptr<WritableFile> file_;
  std::string text_;
};

class Records : public PredictionShardWriter {
 public:
  explicit Records(std::unique_ptr<WritableFile> file)
      : writer_(std::make_unique<CountingFile>(std::move(file), &content_)) {}

  Status Write(absl::Span<const std::string> names, absl::Span<const Tensor> values) override {
    MR_ASSIGN_OR_RETURN(const int64_t rows, RowsOf(names, values));
    for (int64_t row = 0; row < rows; ++row) {
      for (size_t i = 0; i < values.size(); ++i) {
        const auto add = [&]<typename T>() { Add<T>(names[i], RowOf<T>(values[i], row)); };
        WithWritableType(values[i].dtype(), add);
      }
      MR_RETURN_IF_ERROR(writer_.Write(example_.Finish()));
    }
    content_.rows += rows;
    return absl::OkStatus();
  }
  Status Flush() override { return writer_.Flush(); }
  StatusOr<ShardContent> Finish() override {
    MR_RETURN_IF_ERROR(writer_.Sync());
    MR_RETURN_IF_ERROR(writer_.Close());
    return content_;
  }

 private:
  template <typename T>
  void Add(const std::string& name, absl::Span<const T> row) {
    if constexpr (std::is_same_v<T, std::string>) {
      example_.AddTexts(name, row);
    } else if constexpr (std::is_same_v<T, float>) {
      example_.AddFloats(name, row);
    } else if constexpr (std::is_integral_v<T>) {
      ints_.clear();
      for (const T value : row) ints_.push_back(static_cast<int64_t>(value));
      example_.AddInts(name, ints_);
    } else {
      floats_.clear();
      for (const T& value : row) {
        if constexpr (std::is_same_v<T, double>) {
          floats_.push_back(static_cast<float>(value));
        } else {
          floats_.push_back(ToFloat(value));
        }
      }
      example_.AddFloats(name, floats_);
    }
  }

  ShardContent content_;
  RecordWriter writer_;
  data::ExampleBuilder example_;
  std::vector<int64_t> ints_;
  std::vector<float> floats_;
};

}  // namespace

const char* PredictionFormatName(PredictionFormat format) {
  return format == PredictionFormat::kTfRecord ? "tfrecord" : "jsonl";
}

StatusOr<PredictionFormat> ParsePredictionFormat(absl::string_view name) {
  for (const auto format : {PredictionFormat::kJsonLines, PredictionFormat::kTfRecord}) {
    if (name == PredictionFormatName(format)) return format;
  }
  return InvalidArgument("a format of predictions must be jsonl or tfrecord, got '", name, "'");
}

StatusOr<std::unique_ptr<PredictionShardWriter>> PredictionShardWriter::Create(
    FileSystem* fs, const std::string& path, PredictionFormat format) {
  MR_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, fs->NewWritableFile(path));
  if (format == PredictionFormat::kTfRecord) return std::make_unique<Records>(std::move(file));
  return std::make_unique<JsonLines>(std::move(file));
}

}  // namespace millrace
