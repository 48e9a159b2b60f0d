// SPDX-License-Identifier: Apache-2.0
#include "tools/prediction_table.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "core/tensor.h"
#include "formats/tensor_json.h"
#include "nlohmann/json.hpp"
#include "tools/python_literal.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;

// The next values of a row-major list, nested by `dims`.
ordered_json Nested(const ordered_json& flat, absl::Span<const int64_t> dims, size_t* at) {
  if (dims.empty()) return flat[(*at)++];
  ordered_json list = ordered_json::array();
  for (int64_t i = 0; i < dims[0]; ++i) list.push_back(Nested(flat, dims.subspan(1), at));
  return list;
}

// The rows of each output.
StatusOr<std::map<std::string, std::vector<ordered_json>>> RowsOf(const NamedTensors& outputs,
                                                                  int64_t count) {
  std::map<std::string, std::vector<ordered_json>> rows;
  for (const auto& [name, tensor] : outputs) {
    if (tensor.shape().rank() == 0 || tensor.dim(0) != count) {
      return InvalidArgument("output '", name, "' must have a row for each of the ", count,
                             " instances, got shape ", tensor.shape());
    }
    ordered_json all;
    MR_RETURN_IF_ERROR(Prefixed(absl::StrCat("output '", name, "'"), TensorToJson(tensor, &all)));
    const std::vector<int64_t> dims(tensor.shape().dims().begin(), tensor.shape().dims().end());
    size_t at = 0;
    for (int64_t i = 0; i < count; ++i) {
      rows[name].push_back(Nested(all["values"], absl::MakeConstSpan(dims).subspan(1), &at));
    }
  }
  return rows;
}

// Of each instance an object of its rows; of a single output its row.
StatusOr<std::vector<ordered_json>> PredictionsOf(const NamedTensors& outputs, int64_t count) {
  MR_ASSIGN_OR_RETURN(const auto rows, RowsOf(outputs, count));
  std::vector<ordered_json> predictions;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    ordered_json one;
    for (const auto& [name, column] : rows) {
      if (rows.size() == 1) {
        one = column[i];
      } else {
        one[name] = column[i];
      }
    }
    predictions.push_back(std::move(one));
  }
  return predictions;
}

// As JSON has it, but always the shortest that reads back.
std::string ShortestText(double value) {
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
  std::string shortest(text, end.ptr);
  if (shortest.find_first_of(".e") == std::string::npos) shortest += ".0";
  return shortest;
}

std::string Cell(const ordered_json& value) {
  if (value.is_array()) {
    return absl::StrCat("[",
                        absl::StrJoin(value, ", ",
                                      [](std::string* out, const ordered_json& one) {
                                        absl::StrAppend(out, Cell(one));
                                      }),
                        "]");
  }
  if (value.is_string()) {
    PythonValue text;
    text.kind = PythonValue::Kind::kString;
    text.text = value.get<std::string>();
    return PythonRepr(text);
  }
  if (value.is_number_float()) return ShortestText(value.get<double>());
  return value.dump();
}

}  // namespace

StatusOr<std::string> PredictionTable(const NamedTensors& outputs, int64_t count) {
  MR_ASSIGN_OR_RETURN(const auto rows, RowsOf(outputs, count));
  std::vector<std::string> lines(static_cast<size_t>(count) + 1);
  size_t left = rows.size();
  for (const auto& [name, column] : rows) {
    std::vector<std::string> cells = {absl::AsciiStrToUpper(name)};
    for (const ordered_json& row : column) cells.push_back(Cell(row));
    size_t width = 0;
    for (const std::string& cell : cells) width = std::max(width, cell.size());
    --left;
    for (size_t i = 0; i < lines.size(); ++i) {
      lines[i] += cells[i];
      // Nothing behind the last column.
      if (left > 0) lines[i].append(width + 2 - cells[i].size(), ' ');
    }
  }
  return absl::StrCat(absl::StrJoin(lines, "\n"), "\n");
}

StatusOr<std::string> PredictionJson(const NamedTensors& outputs, int64_t count) {
  MR_ASSIGN_OR_RETURN(std::vector<ordered_json> predictions, PredictionsOf(outputs, count));
  return JsonText({{"predictions", ordered_json(std::move(predictions))}});
}

StatusOr<std::vector<std::string>> PredictionLines(const NamedTensors& outputs, int64_t count) {
  MR_ASSIGN_OR_RETURN(const std::vector<ordered_json> predictions, PredictionsOf(outputs, count));
  std::vector<std::string> lines;
  for (const ordered_json& one : predictions) {
    lines.push_back(one.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  }
  return lines;
}

}  // namespace millrace
