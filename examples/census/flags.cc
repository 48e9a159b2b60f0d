// SPDX-License-Identifier: Apache-2.0
#include "examples/census/flags.h"

#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace millrace::census {
namespace {

using Values = std::vector<std::string>;

// Sizes of layers and batches: far beyond what anybody trains, and no product of two overflows.
constexpr int64_t kMaxSize = 1 << 20;
constexpr int64_t kMaxCount = std::numeric_limits<int64_t>::max();

struct Flag {
  FlagSpec spec;
  bool is_list = false;
  std::function<Status(const Values&, Flags*)> set;
};

StatusOr<int64_t> IntegerIn(const std::string& flag, const std::string& text, int64_t low,
                            int64_t high) {
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= low && number <= high) return number;
  if (high == kMaxCount) {
    return InvalidArgument("--", flag, " must be an integer >= ", low, ", got '", text, "'");
  }
  return InvalidArgument("--", flag, " must be an integer in [", low, ", ", high, "], got '", text,
                         "'");
}

template <typename T>
Flag Integer(const char* name, T Flags::*field, int64_t low, int64_t high, const char* help) {
  return {{.name = name, .value = "N", .help = help},
          false,
          [=](const Values& values, Flags* flags) -> Status {
            MR_ASSIGN_OR_RETURN(flags->*field, IntegerIn(name, values[0], low, high));
            return absl::OkStatus();
          }};
}

Flag PositiveNumber(const char* name, double Flags::*field, const char* help) {
  return {{.name = name, .value = "X", .help = help},
          false,
          [=](const Values& values, Flags* flags) -> Status {
            double number = 0;
            if (!absl::SimpleAtod(values[0], &number) || !std::isfinite(number) || number <= 0) {
              return InvalidArgument("--", name, " must be a number > 0, got '", values[0], "'");
            }
            flags->*field = number;
            return absl::OkStatus();
          }};
}

Flag Files(const char* name, Values Flags::*field, const char* help) {
  return {{.name = name, .value = "FILE [FILE...]", .help = help},
          true,
          [=](const Values& values, Flags* flags) -> Status {
            flags->*field = values;
            return absl::OkStatus();
          }};
}

template <typename T>
Flag Choice(const char* name, T Flags::*field, std::vector<std::pair<const char*, T>> choices,
            const char* help) {
  const std::string names = absl::StrJoin(
      choices, ", ", [](std::string* out, const auto& choice) { *out += choice.first; });
  return {{.name = name, .value = absl::StrReplaceAll(names, {{", ", "|"}}), .help = help},
          false,
          [=](const Values& values, Flags* flags) -> Status {
            for (const auto& [text, value] : choices) {
              if (values[0] != text) continue;
              flags->*field = value;
              return absl::OkStatus();
            }
            return InvalidArgument("--", name, " must be one of ", names, ", got '", values[0],
                                   "'");
          }};
}

const std::vector<Flag>& AllFlags() {
  static const auto* const flags = new std::vector<Flag>{
      Files("train-files", &Flags::train_files,
            "CSV files to train on; without files the program draws people"),
      Files("eval-files", &Flags::eval_files, "CSV files to evaluate on"),
      {{.name = "job-dir",
        .value = "DIR",
        .help = "checkpoints, evaluations and exports; all tasks must see it"},
       false,
       [](const Values& values, Flags* f) -> Status {
         f->job_dir = values[0];
         return absl::OkStatus();
       }},
      Integer("train-steps", &Flags::train_steps, 1, kMaxCount,
              "global steps of all trainers together"),
      Integer("num-epochs", &Flags::num_epochs, 1, kMaxCount,
              "how often each trainer reads its files; without it: until --train-steps"),
      Integer("train-batch-size", &Flags::train_batch_size, 1, kMaxSize, "people in a step (40)"),
      Integer("eval-batch-size", &Flags::eval_batch_size, 1, kMaxSize,
              "people in a batch of an evaluation (40)"),
      Integer("eval-steps", &Flags::eval_steps, 0, kMaxCount,
              "batches of an evaluation (100); 0: to the end of the files"),
      Integer("embedding-size", &Flags::embedding_size, 1, kMaxSize, "numbers in an embedding (8)"),
      Integer("first-layer-size", &Flags::first_layer_size, 1, kMaxSize,
              "units of the first layer (100)"),
      Integer("num-layers", &Flags::num_layers, 1, 100, "layers of the network (4)"),
      PositiveNumber("scale-factor", &Flags::scale_factor,
                     "how much smaller a layer is than the one before (0.7)"),
      Choice<ExportFormat>("export-format", &Flags::export_format,
                           {{"JSON", ExportFormat::kJson},
                            {"CSV", ExportFormat::kCsv},
                            {"EXAMPLE", ExportFormat::kExample}},
                           "what callers of the exported model send (JSON)"),
      Choice<LogLevel>("verbosity", &Flags::verbosity,
                       {{"DEBUG", LogLevel::kInfo},
                        {"INFO", LogLevel::kInfo},
                        {"WARN", LogLevel::kWarning},
                        {"ERROR", LogLevel::kError},
                        {"FATAL", LogLevel::kError}},
                       "what is logged (INFO)"),
      Integer("keep-mb", &Flags::keep_mb, 0, kMaxSize,
              "files of at most N MB are parsed once and kept in memory; 0: in each epoch (64)"),
      Integer("skip-header-lines", &Flags::skip_header_lines, 0, kMaxCount,
              "lines at the begin of the first file that are no people (0)"),
      Integer("seed", &Flags::seed, 0, kMaxCount,
              "of initial values, drawn people and order; 0: chance (0)"),
      Integer("save-checkpoints-steps", &Flags::save_checkpoints_steps, 1, kMaxCount,
              "global steps between checkpoints; without it: ten minutes"),
      Integer("eval-start-delay-secs", &Flags::eval_start_delay_secs, 0, 1'000'000,
              "before the evaluator's first evaluation (0)"),
      Integer("eval-throttle-secs", &Flags::eval_throttle_secs, 0, 1'000'000,
              "between two evaluations (60)"),
      Integer("max-worker-delay-secs", &Flags::max_worker_delay_secs, 0, 1'000'000,
              "worker i begins 5 (i + 1) seconds later, this at most (0)"),
      Integer("wait-for-evaluator-secs", &Flags::wait_for_evaluator_secs, 0, 1'000'000,
              "how long the chief stays for the last evaluation (0)"),
      PositiveNumber("capital-gain-scale", &Flags::capital_gain_scale,
                     "what capital gains are multiplied by before the network (1)")};
  return *flags;
}

// Also one whose name is cut short, when no other begins so; null: none.
const Flag* FlagNamed(absl::string_view word) {
  if (!absl::ConsumePrefix(&word, "--") || word.empty()) return nullptr;
  const Flag* found = nullptr;
  for (const Flag& flag : AllFlags()) {
    if (flag.spec.name == word) return &flag;
    if (!absl::StartsWith(flag.spec.name, word)) continue;
    if (found != nullptr) return nullptr;
    found = &flag;
  }
  return found;
}

bool IsFlag(const std::string& word) {
  return absl::StartsWith(word, "-") && word.size() > 1 && !(word[1] >= '0' && word[1] <= '9');
}

Status Check(const Flags& flags) {
  if (flags.train_files.empty() != flags.eval_files.empty()) {
    return InvalidArgument("--train-files and --eval-files must be given together, got only --",
                           flags.train_files.empty() ? "eval-files" : "train-files");
  }
  if (!flags.train_steps && !flags.num_epochs) {
    return InvalidArgument(
        "--train-steps must be given, or --num-epochs, got none; training would not end");
  }
  if (flags.skip_header_lines > 0 && flags.train_files.empty()) {
    return InvalidArgument("--skip-header-lines must be given with files, got none");
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<Flags> ParseFlags(absl::Span<const std::string> args) {
  Flags flags;
  for (size_t i = 0; i < args.size();) {
    const std::string& word = args[i++];
    if (word == "-h" || word == "--help") flags.help = true;
    if (word == "-v" || word == "--version") flags.version = true;
    if (flags.help || flags.version) return flags;
    const size_t equals = word.find('=');
    const std::string name = absl::StrReplaceAll(word.substr(0, equals), {{"_", "-"}});
    Values values;
    if (equals != std::string::npos) values.push_back(word.substr(equals + 1));
    const Flag* const flag = FlagNamed(name);
    if (flag == nullptr) {
      flags.ignored.push_back(word);
      continue;
    }
    const bool takes_more = equals == std::string::npos;
    while (takes_more && i < args.size() && !IsFlag(args[i]) && (values.empty() || flag->is_list)) {
      values.push_back(args[i++]);
    }
    if (values.empty()) return InvalidArgument(name, " must have a value, got none");
    MR_RETURN_IF_ERROR(flag->set(values, &flags));
  }
  MR_RETURN_IF_ERROR(Check(flags));
  return flags;
}

ProgramHelp Help() {
  ProgramHelp help = {
      .name = "census",
      .about =
          "Trains a wide and deep model that tells who earns more than 50,000 a year, "
          "evaluates and exports it,\nin one process or as a task of a cluster (TF_CONFIG, or "
          "--ps-hosts, --worker-hosts, --chief-hosts,\n--worker-type and --worker-index)."};
  for (const Flag& flag : AllFlags()) help.flags.push_back(flag.spec);
  return help;
}

}  // namespace millrace::census
