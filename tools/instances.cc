// SPDX-License-Identifier: Apache-2.0
#include "tools/instances.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "formats/json_nesting.h"
#include "formats/json_value.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using nlohmann::json;

// A value as a message shows it: not the whole of a large one.
std::string Shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

template <typename Names>
std::string Quoted(const Names& names) {
  if (names.empty()) return "none";
  return absl::StrJoin(names, ", ", [](std::string* out, const std::string& name) {
    absl::StrAppend(out, "'", name, "'");
  });
}

std::vector<std::string> KeysOf(const SignatureInputs& inputs) {
  std::vector<std::string> keys;
  for (const auto& [key, tensor] : inputs) keys.push_back(key);
  return keys;
}

// --- The rows of one input -----------------------------------------------------------------------

// The shape of nested lists by their first elements.
std::vector<int64_t> DimsOf(const json& value) {
  std::vector<int64_t> dims;
  for (const json* at = &value; at->is_array(); at = &(*at)[0]) {
    dims.push_back(static_cast<int64_t>(at->size()));
    if (at->empty()) break;
  }
  return dims;
}

template <typename T>
class Rows {
 public:
  // False when the value is not of this shape, or has an element of another kind.
  bool Add(const json& value, absl::Span<const int64_t> dims) {
    if (dims.empty()) {
      // A vector of bool has no elements to point to.
      T element{};
      if (!FromJson(value, &element)) return false;
      values_.push_back(std::move(element));
      return true;
    }
    if (!value.is_array() || static_cast<int64_t>(value.size()) != dims[0]) return false;
    for (const json& one : value) {
      if (!Add(one, dims.subspan(1))) return false;
    }
    return true;
  }

  StatusOr<Tensor> ToTensor(const Shape& shape) {
    MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(DTypeOf<T>, shape));
    const absl::Span<T> flat = tensor.mutable_flat<T>();
    std::move(values_.begin(), values_.end(), flat.begin());
    return tensor;
  }

 private:
  std::vector<T> values_;
};

struct Line {
  int64_t number;  // in the file, from 1
  json value;
  absl::string_view text;
};

template <typename T>
StatusOr<Tensor> StackedAs(const std::string& key, const SignatureTensor& input,
                           absl::Span<const Line> lines, absl::Span<const json* const> values) {
  const std::vector<int64_t> dims = DimsOf(*values[0]);
  std::vector<int64_t> all = {static_cast<int64_t>(values.size())};
  all.insert(all.end(), dims.begin(), dims.end());
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(all));
  Rows<T> rows;
  for (size_t i = 0; i < values.size(); ++i) {
    if (rows.Add(*values[i], dims)) continue;
    return InvalidArgument("line ", lines[i].number, ": input '", key, "' must be of ",
                           input.dtype(), " with shape [", absl::StrJoin(dims, ","), "]",
                           i == 0 ? "" : " like the instances before", ", got ", Shown(*values[i]));
  }
  if (!input.shape().IsCompatibleWith(shape)) {
    return InvalidArgument("line ", lines[0].number, ": input '", key, "' must have shape ",
                           input.shape(), " as a batch, got ", shape, " of ", values.size(),
                           " instances; the first is ", Shown(*values[0]));
  }
  return rows.ToTensor(shape);
}

StatusOr<Tensor> Stacked(const std::string& key, const SignatureTensor& input,
                         absl::Span<const Line> lines, absl::Span<const json* const> values) {
  switch (input.dtype()) {
    case DT_FLOAT:
      return StackedAs<float>(key, input, lines, values);
    case DT_DOUBLE:
      return StackedAs<double>(key, input, lines, values);
    case DT_INT8:
      return StackedAs<int8_t>(key, input, lines, values);
    case DT_UINT8:
      return StackedAs<uint8_t>(key, input, lines, values);
    case DT_INT16:
      return StackedAs<int16_t>(key, input, lines, values);
    case DT_UINT16:
      return StackedAs<uint16_t>(key, input, lines, values);
    case DT_INT32:
      return StackedAs<int32_t>(key, input, lines, values);
    case DT_UINT32:
      return StackedAs<uint32_t>(key, input, lines, values);
    case DT_INT64:
      return StackedAs<int64_t>(key, input, lines, values);
    case DT_UINT64:
      return StackedAs<uint64_t>(key, input, lines, values);
    case DT_BOOL:
      return StackedAs<bool>(key, input, lines, values);
    case DT_STRING:
      return StackedAs<std::string>(key, input, lines, values);
    default:
      return Unimplemented("input '", key, "' must be of numbers, Booleans or strings, got ",
                           input.dtype());
  }
}

// --- Instances -----------------------------------------------------------------------------------

StatusOr<std::vector<Line>> JsonLines(absl::string_view text) {
  std::vector<Line> lines;
  int64_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::string_view content = absl::StripAsciiWhitespace(line);
    if (content.empty()) continue;
    if (JsonNesting(content) > kMaxJsonNesting) {
      return InvalidArgument("line ", number, ": must be nested at most ", kMaxJsonNesting,
                             " deep, got ", JsonNesting(content));
    }
    json value = json::parse(content, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) {
      return InvalidArgument("line ", number, ": must be a JSON value, got '",
                             content.substr(0, 60), "'");
    }
    lines.push_back({number, std::move(value), content});
  }
  if (lines.empty()) return InvalidArgument("must have an instance in a line, got none");
  return lines;
}

// Of each instance the value of each input, or what is wrong with its keys.
StatusOr<std::map<std::string, std::vector<const json*>>> ByInput(absl::Span<const Line> lines,
                                                                  const SignatureInputs& inputs) {
  std::map<std::string, std::vector<const json*>> values;
  for (const Line& line : lines) {
    const json& value = line.value;
    if (inputs.size() == 1 && (!value.is_object() || IsJsonBytes(value))) {
      values[inputs.begin()->first].push_back(&value);
      continue;
    }
    if (!value.is_object()) {
      return InvalidArgument("line ", line.number, ": must be an object with the keys ",
                             Quoted(KeysOf(inputs)), ", got ", Shown(value));
    }
    std::vector<std::string> missing, unknown;
    for (const auto& [key, input] : inputs) {
      if (value.contains(key)) {
        values[key].push_back(&value[key]);
      } else {
        missing.push_back(key);
      }
    }
    for (const auto& [key, one] : value.items()) {
      if (inputs.count(key) == 0) unknown.push_back(key);
    }
    if (!missing.empty() || !unknown.empty()) {
      return InvalidArgument("line ", line.number, ": keys must be those of the signature, ",
                             Quoted(KeysOf(inputs)), "; missing: ", Quoted(missing),
                             ", unknown: ", Quoted(unknown));
    }
  }
  return values;
}

}  // namespace

StatusOr<Instances> JsonInstances(absl::string_view text, const SignatureInputs& inputs) {
  MR_ASSIGN_OR_RETURN(const std::vector<Line> lines, JsonLines(text));
  MR_ASSIGN_OR_RETURN(const auto values, ByInput(lines, inputs));
  Instances instances = {.count = static_cast<int64_t>(lines.size())};
  for (const auto& [key, input] : inputs) {
    MR_ASSIGN_OR_RETURN(instances.inputs[key], Stacked(key, input, lines, values.at(key)));
  }
  return instances;
}

StatusOr<std::vector<std::string>> JsonInstanceTexts(absl::string_view text) {
  MR_ASSIGN_OR_RETURN(const std::vector<Line> lines, JsonLines(text));
  std::vector<std::string> texts;
  for (const Line& line : lines) texts.emplace_back(line.text);
  return texts;
}

StatusOr<std::vector<std::string>> TextInstanceLines(absl::string_view text) {
  absl::ConsumeSuffix(&text, "\n");
  if (text.empty()) return InvalidArgument("must have an instance in a line, got none");
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::ConsumeSuffix(&line, "\r");
    lines.emplace_back(line);
  }
  return lines;
}

StatusOr<Instances> StringInstances(std::vector<std::string> strings,
                                    const SignatureInputs& inputs) {
  if (inputs.size() != 1 || inputs.begin()->second.dtype() != DT_STRING) {
    std::vector<std::string> has;
    for (const auto& [key, input] : inputs)
      has.push_back(absl::StrCat(key, ": ", DTypeName(input.dtype())));
    return InvalidArgument("text is for a signature with one input of strings, got ", Quoted(has));
  }
  Instances instances = {.count = static_cast<int64_t>(strings.size())};
  MR_ASSIGN_OR_RETURN(instances.inputs[inputs.begin()->first],
                      Tensor::FromValues<std::string>(Shape{instances.count}, strings));
  return instances;
}

StatusOr<Instances> TextInstances(absl::string_view text, const SignatureInputs& inputs) {
  StatusOr<std::vector<std::string>> lines = TextInstanceLines(text);
  // What a signature does not take is told first.
  if (!lines.ok()) MR_RETURN_IF_ERROR(StringInstances({}, inputs).status());
  MR_RETURN_IF_ERROR(lines.status());
  return StringInstances(*std::move(lines), inputs);
}

}  // namespace millrace
