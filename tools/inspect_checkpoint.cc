// SPDX-License-Identifier: Apache-2.0
//
// inspect_checkpoint: the tensors of a checkpoint, and their values.
//
//   inspect_checkpoint [--json] [--tensor NAME] PREFIX|DIR
//
// PREFIX is what a Saver returns ("run/model.ckpt-100"), of either format, or one of its files; a
// directory or its state file stands for its newest checkpoint, the directory of a SavedModel for
// its variables (saver/checkpoint_name.h). Without --tensor names, dtypes and
// shapes; with --json each tensor's checksum (the first 16 digits of the SHA-256 of its
// little-endian bytes), first four values and, of floating ones, their sum; strings whole. Exit
// codes: 0, 1 with the reason on stderr, 2 for wrong flags.

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/did_you_mean.h"
#include "core/dtype.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/sha256.h"
#include "core/status.h"
#include "core/tensor.h"
#include "formats/tensor_json.h"
#include "nlohmann/json.hpp"
#include "tools/checkpoint_file.h"
#include "tools/command_line.h"
#include "tools/floating_values.h"
#include "tools/numpy_format.h"
#include "tools/op_library_flag.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;

constexpr char kProgram[] = "inspect_checkpoint";

ProgramHelp Help() {
  return {.name = kProgram,
          .about = "Shows the tensors of a checkpoint, or the newest checkpoint of a directory.",
          .flags = {{.name = "json", .help = "prints JSON"},
                    {.name = "tensor", .value = "NAME", .help = "prints the values of this one"},
                    OpLibraryFlag()},
          .rest = "PREFIX|DIR"};
}

// Added up in pairs of halves: the error does not grow with their number.
double SumOf(absl::Span<const double> values) {
  if (values.size() <= 128) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }
  const size_t half = values.size() / 2;
  return SumOf(values.first(half)) + SumOf(values.subspan(half));
}

ordered_json ValuesToJson(absl::Span<const double> values) {
  ordered_json json;
  TensorToJson(Tensor::Vector<double>(values), &json).IgnoreError();  // doubles have a form
  return json["values"];
}

StatusOr<ordered_json> TensorSummary(const Tensor& tensor) {
  ordered_json json;
  if (tensor.dtype() == DT_STRING) {
    MR_RETURN_IF_ERROR(TensorToJson(tensor, &json));
    return json;
  }
  json["dtype"] = JsonTypeName(tensor.dtype());
  json["shape"] = ordered_json::array();
  for (const int64_t dim : tensor.shape().dims()) json["shape"].push_back(dim);
  const absl::Span<const char> bytes = tensor.bytes();
  MR_ASSIGN_OR_RETURN(const std::string hash,
                      Sha256(absl::string_view(bytes.data(), bytes.size())));
  json["sha256"] = absl::BytesToHexString(hash).substr(0, 16);
  const int64_t count = std::min<int64_t>(4, tensor.num_elements());
  if (IsFloating(tensor.dtype())) {
    const std::vector<double> values = DoublesOf(tensor);
    json["first"] = ValuesToJson(absl::MakeConstSpan(values).first(static_cast<size_t>(count)));
    json["sum"] = ValuesToJson({SumOf(values)})[0];
    return json;
  }
  MR_ASSIGN_OR_RETURN(const Shape flat, Shape::Make({tensor.num_elements()}));
  MR_ASSIGN_OR_RETURN(const Tensor vector, tensor.Reshaped(flat));
  ordered_json first;
  MR_RETURN_IF_ERROR(TensorToJson(vector.Rows(0, count), &first));
  json["first"] = first["values"];
  return json;
}

StatusOr<std::string> Json(const CheckpointFile& checkpoint) {
  ordered_json json;
  json["num_shards"] = checkpoint.num_shards;
  json["index_block_compression"] = checkpoint.is_compressed ? "snappy" : "none";
  json["tensors"] = ordered_json::object();
  for (const CheckpointFile::Entry& entry : checkpoint.entries) {
    MR_ASSIGN_OR_RETURN(const Tensor tensor, checkpoint.read(entry.name));
    MR_ASSIGN_OR_RETURN(json["tensors"][entry.name], TensorSummary(tensor));
  }
  return JsonText(json);
}

std::string Text(const CheckpointFile& checkpoint) {
  size_t name_width = 4;
  int64_t elements = 0;
  for (const CheckpointFile::Entry& entry : checkpoint.entries) {
    name_width = std::max(name_width, entry.name.size());
    elements += entry.shape.num_elements();
  }
  std::string text =
      absl::StrCat(checkpoint.prefix, ": ", checkpoint.entries.size(), " tensors with ", elements,
                   " elements in ", checkpoint.num_shards, " files\n");
  for (const CheckpointFile::Entry& entry : checkpoint.entries) {
    absl::StrAppendFormat(&text, "%-*s  %-8s  %s\n", static_cast<int>(name_width), entry.name,
                          JsonTypeName(entry.dtype), entry.shape.ToString());
  }
  return text;
}

StatusOr<std::string> TensorText(const CheckpointFile& checkpoint, const std::string& name,
                                 bool as_json) {
  DidYouMean best(name);
  bool is_there = false;
  for (const CheckpointFile::Entry& entry : checkpoint.entries) {
    is_there = is_there || entry.name == name;
    best.Consider(entry.name);
  }
  if (!is_there) {
    return absl::NotFoundError(absl::StrCat("Checkpoint '", checkpoint.prefix,
                                            "': --tensor must name a tensor in it, got '", name,
                                            "'", best.Hint()));
  }
  MR_ASSIGN_OR_RETURN(const Tensor tensor, checkpoint.read(name));
  if (!as_json) return NumpyString(tensor) + "\n";
  ordered_json json;
  MR_RETURN_IF_ERROR(TensorToJson(tensor, &json));
  return JsonText(json);
}

Status Run(const std::string& path, const CommandLine& flags) {
  MR_RETURN_IF_ERROR(LookForOpLibraries(flags));
  MR_ASSIGN_OR_RETURN(const CheckpointFile checkpoint,
                      CheckpointFile::Open(FileSystem::Default(), path));
  const bool as_json = flags.has("json");
  StatusOr<std::string> text = Text(checkpoint);
  if (flags.has("tensor")) {
    text = TensorText(checkpoint, flags.value("tensor"), as_json);
  } else if (as_json) {
    text = Json(checkpoint);
  }
  MR_RETURN_IF_ERROR(text.status());
  std::cout << *text;
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& args) {
  EnterCallersDirectory();
  int exit_code = kExitOk;
  std::string path;
  const auto flags = CommandLine::ParseOrExplain(Help(), args, &exit_code, &path);
  if (!flags) return exit_code;
  const Status status = Run(path, *flags);
  if (!status.ok()) std::cerr << kProgram << ": " << status.message() << "\n";
  return ExitCode(status);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
