// SPDX-License-Identifier: Apache-2.0
//
// predict: asks a model server about instances, and prints a row for each as local_predict does.
//
//   predict --server localhost:8500 --model census --json_instances people.json
//   predict --server localhost:8501 --rest --model census --text_instances - --format json
//
// The credentials are those of this process (docs/security.md); over REST there are none.
//
// Exit codes: 0, 2 for wrong flags (usage on stderr), 1 for everything else, or 128 and more for
// what is worth another try, with one message.

#include <cstdint>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/status.h"
#include "formats/json_value.h"
#include "saver/loaded_model.h"
#include "saver/model_signature.h"
#include "tools/command_line.h"
#include "tools/instances.h"
#include "tools/local_model.h"
#include "tools/prediction_table.h"
#include "tools/remote_model.h"

namespace millrace {
namespace {

constexpr char kProgram[] = "predict";
constexpr int kMaxTimeoutSeconds = 7 * 24 * 3600;

StatusOr<std::string> TextIn(const std::string& path) {
  if (path != "-") return ReadFileToString(FileSystem::Default(), path);
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

// Of flags as they are given.
Status CheckFlags(const CommandLine& flags) {
  if (flags.has("json_instances") == flags.has("text_instances")) {
    return InvalidArgument("one of --json_instances and --text_instances must be given, got ",
                           flags.has("json_instances") ? "both" : "none");
  }
  if (flags.has("model_version") && flags.has("label")) {
    return InvalidArgument("at most one of --model_version and --label must be given, got both");
  }
  const std::string format = flags.value("format");
  if (flags.has("format") && format != "json" && format != "table") {
    return InvalidArgument("--format must be table or json, got '", format, "'");
  }
  return absl::OkStatus();
}

StatusOr<RemoteModel> ModelOf(const CommandLine& flags) {
  RemoteModel model = {.address = flags.value("server"),
                       .name = flags.value("model"),
                       .which = {.label = flags.value("label")},
                       .signature = flags.value("signature")};
  if (flags.has("model_version")) {
    const std::string text = flags.value("model_version");
    int64_t version = 0;
    const bool is_number = absl::SimpleAtoi(text, &version);
    // Versions of a front have names.
    if (!is_number && !text.empty() && flags.BoolValue("rest", false)) {
      model.version_name = text;
    } else if (is_number && version >= 0) {
      model.which.version = version;
    } else {
      return InvalidArgument("--model_version must be a number >= 0, got '", text, "'",
                             is_number ? "" : "; names are for a front, with --rest");
    }
  }
  MR_ASSIGN_OR_RETURN(const int seconds,
                      flags.IntValue("timeout_seconds", 60, 1, kMaxTimeoutSeconds));
  model.timeout = absl::Seconds(seconds);
  return model;
}

// One that tells what its file is.
template <typename T>
StatusOr<T> OfFile(const std::string& path, StatusOr<T> instances) {
  if (!instances.ok()) return Prefixed(absl::StrCat("'", path, "'"), instances.status());
  return instances;
}

StatusOr<std::string> RestPredictions(const CommandLine& flags, const RemoteModel& model,
                                      const std::string& path, const std::string& text) {
  std::vector<std::string> values;
  if (flags.has("text_instances")) {
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> lines,
                        OfFile(path, TextInstanceLines(text)));
    for (const std::string& line : lines) {
      values.emplace_back();
      AppendJson(line, &values.back());
    }
  } else {
    MR_ASSIGN_OR_RETURN(values, OfFile(path, JsonInstanceTexts(text)));
  }
  MR_ASSIGN_OR_RETURN(const auto signatures, RestSignatures(model));
  MR_ASSIGN_OR_RETURN(const std::string signature,
                      ChosenSignature(signatures, model.signature, "--signature"));
  MR_ASSIGN_OR_RETURN(const std::string reply, RestPredict(model, signature, values));
  if (flags.value("format") == "json") {
    return absl::EndsWith(reply, "\n") ? reply : absl::StrCat(reply, "\n");
  }
  MR_ASSIGN_OR_RETURN(const Instances rows,
                      PredictionsOfReply(reply, signatures.at(signature).outputs()));
  return PredictionTable(rows.inputs, rows.count);
}

StatusOr<std::string> Predictions(const CommandLine& flags) {
  MR_RETURN_IF_ERROR(CheckFlags(flags));
  MR_ASSIGN_OR_RETURN(const RemoteModel model, ModelOf(flags));
  const bool is_text = flags.has("text_instances");
  const std::string path = flags.value(is_text ? "text_instances" : "json_instances");
  MR_ASSIGN_OR_RETURN(const std::string text, TextIn(path));
  if (flags.BoolValue("rest", false)) return RestPredictions(flags, model, path, text);
  MR_ASSIGN_OR_RETURN(const LocalModel remote, OpenRemoteModel(model));
  MR_ASSIGN_OR_RETURN(const Instances instances,
                      OfFile(path, is_text ? TextInstances(text, remote.inputs)
                                           : JsonInstances(text, remote.inputs)));
  MR_ASSIGN_OR_RETURN(const NamedTensors outputs, remote.predict(instances.inputs));
  return flags.value("format") == "json" ? PredictionJson(outputs, instances.count)
                                         : PredictionTable(outputs, instances.count);
}

int Main(const std::vector<std::string>& args) {
  EnterCallersDirectory();
  const ProgramHelp help = {
      .name = kProgram,
      .about =
          "Asks a model server about instances and prints a row for each, over gRPC, or over "
          "REST without TLS.",
      .flags = {{.name = "server",
                 .value = "HOST:PORT|unix:/PATH",
                 .help = "where it listens: its gRPC port, or its REST port with --rest",
                 .required = true},
                {.name = "rest", .help = "asks over REST", .boolean = true},
                {.name = "model", .value = "NAME", .help = "the model", .required = true},
                {.name = "model_version",
                 .value = "N",
                 .help = "of the model (the newest); of a front, with --rest, its name"},
                {.name = "label", .value = "L", .help = "of a version, instead of its number"},
                {.name = "signature",
                 .value = "NAME",
                 .help = "what is asked (serving_default, else the only one)"},
                {.name = "json_instances",
                 .value = "FILE",
                 .help = "a JSON value in each line: an object with a value per input; \"-\" is "
                         "stdin"},
                {.name = "text_instances",
                 .value = "FILE",
                 .help = "a text in each line, for a model with one input of strings"},
                {.name = "format", .value = "table|json", .help = "how it is printed (table)"},
                {.name = "timeout_seconds", .value = "N", .help = "of each call (60)"}}};
  int exit_code = kExitOk;
  const auto flags = CommandLine::ParseOrExplain(help, args, &exit_code);
  if (!flags) return exit_code;
  const StatusOr<std::string> text = Predictions(*flags);
  if (!text.ok()) return ReportedExitCode(kProgram, text.status());
  std::cout << *text << std::flush;
  return std::cout ? kExitOk : kExitError;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
