// SPDX-License-Identifier: Apache-2.0
#include "tools/job_config.h"

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/did_you_mean.h"

namespace millrace {
namespace {

constexpr char kOnTheCpu[] =
    "tensors are in the memory of the CPU here, and steps run on its cores";
constexpr size_t kMaxShown = 60;
constexpr size_t kMaxArgs = 1000;

// A value from outside, fit for a message of one line.
std::string Quoted(absl::string_view text) {
  const bool cut = text.size() > kMaxShown;
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kMaxShown)), cut ? "...'" : "'");
}

// One value of the file. Aliases of one anchor share it.
struct Value {
  enum class Kind { kNull, kText, kList, kMap };
  Kind kind = Kind::kNull;
  YAML::Mark mark;
  std::string text;
  std::vector<std::shared_ptr<Value>> items;  // of a map: a key, its value, the next key
};
using ValuePtr = std::shared_ptr<Value>;

std::string KindText(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNull:
      return "nothing";
    case Value::Kind::kText:
      return Quoted(value.text);
    case Value::Kind::kList:
      return "a list";
    case Value::Kind::kMap:
      return "a map";
  }
  return "";
}

// Builds the values of the first document. After the first error nothing more is kept.
class Builder : public YAML::EventHandler {
 public:
  const std::string& error() const { return error_; }
  YAML::Mark error_mark() const { return error_mark_; }
  int documents() const { return documents_; }
  ValuePtr root() const { return root_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) Fail(mark, "must be one document, got a second one");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Add(mark, Value::Kind::kNull, anchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                const std::string& value) override {
    if (const ValuePtr added = Add(mark, Value::Kind::kText, anchor)) added->text = value;
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (!error_.empty()) return;
    if (++aliases_ > kMaxJobConfigAliases) {
      return Fail(mark, absl::StrCat("must have at most ", kMaxJobConfigAliases,
                                     " aliases, got another one"));
    }
    const auto it = anchors_.find(anchor);
    if (it == anchors_.end()) return Fail(mark, "an alias must refer to an anchor, got none");
    // In a list or map that is still open it would refer to itself, and never be freed.
    if (std::find(open_.begin(), open_.end(), it->second) != open_.end()) {
      return Fail(mark, "an alias must not refer to what it is in");
    }
    Place(it->second);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    Open(mark, Value::Kind::kList, anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    Open(mark, Value::Kind::kMap, anchor);
  }
  void OnMapEnd() override { Close(); }

 private:
  void Fail(const YAML::Mark& mark, std::string error) {
    if (!error_.empty()) return;
    error_ = std::move(error);
    error_mark_ = mark;
  }
  ValuePtr Add(const YAML::Mark& mark, Value::Kind kind, YAML::anchor_t anchor) {
    if (!error_.empty()) return nullptr;
    if (++values_ > kMaxJobConfigValues) {
      Fail(mark, absl::StrCat("must have at most ", kMaxJobConfigValues, " values, got more"));
      return nullptr;
    }
    auto value = std::make_shared<Value>();
    value->kind = kind;
    value->mark = mark;
    if (anchor != YAML::NullAnchor) anchors_[anchor] = value;
    Place(value);
    return value;
  }
  void Place(const ValuePtr& value) {
    if (!open_.empty()) {
      open_.back()->items.push_back(value);
    } else if (root_ == nullptr) {
      root_ = value;
    }
  }
  void Open(const YAML::Mark& mark, Value::Kind kind, YAML::anchor_t anchor) {
    const ValuePtr value = Add(mark, kind, anchor);
    if (value == nullptr) return;
    if (static_cast<int>(open_.size()) >= kMaxJobConfigDepth) {
      return Fail(mark, absl::StrCat("values must be nested at most ", kMaxJobConfigDepth,
                                     " deep, got deeper ones"));
    }
    open_.push_back(value);
  }
  void Close() {
    if (error_.empty() && !open_.empty()) open_.pop_back();
  }

  ValuePtr root_;
  std::vector<ValuePtr> open_;
  std::map<YAML::anchor_t, ValuePtr> anchors_;
  int values_ = 0, aliases_ = 0, documents_ = 0;
  std::string error_;
  YAML::Mark error_mark_;
};

// The file's name, for messages that have a place.
class File {
 public:
  explicit File(absl::string_view name) : name_(name) {}

  std::string At(const YAML::Mark& mark) const {
    return mark.is_null() ? absl::StrCat(name_, ": ")
                          : absl::StrCat(name_, ":", mark.line + 1, ":", mark.column + 1, ": ");
  }
  Status Wrong(const Value& value, absl::string_view key, absl::string_view rule) const {
    return InvalidArgument(At(value.mark), key, " ", rule, ", got ", KindText(value));
  }

  StatusOr<ValuePtr> Read(absl::string_view text) const {
    if (text.size() > kMaxJobConfigBytes) {
      return InvalidArgument(name_, ": must have at most ", kMaxJobConfigBytes, " bytes, got ",
                             text.size());
    }
    // The scanner takes a zero for the end of the file: what is behind it would not be seen.
    if (const size_t zero = text.find('\0'); zero != absl::string_view::npos) {
      return InvalidArgument(name_, ": must be text, got a zero at byte ", zero + 1);
    }
    Builder builder;
    try {
      std::istringstream stream{std::string(text)};
      YAML::Parser parser(stream);
      while (builder.error().empty() && parser.HandleNextDocument(builder)) {
      }
    } catch (const YAML::DeepRecursion& error) {
      return InvalidArgument(At(error.mark), "values must be nested at most ", kMaxJobConfigDepth,
                             " deep, got deeper ones");
    } catch (const YAML::Exception& error) {
      if (builder.error().empty()) {
        return InvalidArgument(At(error.mark), "must be YAML, got: ", error.msg);
      }
    }
    if (!builder.error().empty()) {
      return InvalidArgument(At(builder.error_mark()), builder.error());
    }
    return builder.root();
  }

 private:
  const std::string name_;
};

class Reader {
 public:
  explicit Reader(absl::string_view name) : file_(name) {}

  StatusOr<JobConfig> Read(absl::string_view text) {
    MR_ASSIGN_OR_RETURN(const ValuePtr root, file_.Read(text));
    const bool empty = root == nullptr || root->kind == Value::Kind::kNull;
    if (!empty) {
      MR_RETURN_IF_ERROR(ReadMap(
          *root, "the file", "",
          [this](absl::string_view key, const Value& value) { return ReadTop(key, value); }));
    }
    return std::move(config_);
  }

 private:
  // Calls `read` for each key, which must be a text and be there once. What `read` does not know
  // (NotFound, with the hint) is warned of.
  template <typename Read>
  Status ReadMap(const Value& map, absl::string_view what, absl::string_view prefix, Read read) {
    if (map.kind != Value::Kind::kMap) {
      return file_.Wrong(map, what, "must be a map (\"key: value\")");
    }
    std::set<std::string> seen;
    for (size_t i = 0; i + 1 < map.items.size(); i += 2) {
      const Value& key = *map.items[i];
      if (key.kind != Value::Kind::kText) return file_.Wrong(key, "a key", "must be a text");
      const std::string name = absl::StrCat(prefix, key.text);
      if (!seen.insert(key.text).second) {
        return InvalidArgument(file_.At(key.mark), Quoted(name),
                               " must be given once, got it twice");
      }
      const Status status = read(key.text, *map.items[i + 1]);
      if (absl::IsNotFound(status)) {
        if (!status.message().empty()) {
          return InvalidArgument(file_.At(key.mark), "a key must be known, got ", Quoted(name),
                                 status.message());
        }
        config_.warnings.push_back(
            absl::StrCat(file_.At(key.mark), Quoted(name), " means nothing here and is ignored"));
        continue;
      }
      MR_RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }

  // NotFound, with the hint when a known key is near.
  static Status Unknown(absl::string_view key, std::initializer_list<absl::string_view> known) {
    DidYouMean best(key);
    for (const absl::string_view one : known) best.Consider(one);
    return absl::NotFoundError(best.Hint());
  }

  Status ReadTop(absl::string_view key, const Value& value) {
    if (key == "predictionInput") {
      return Unimplemented(file_.At(value.mark),
                           "predictionInput is a job of predictions, got one; batch_predict "
                           "predicts, submit trains");
    }
    if (key != "trainingInput") return Unknown(key, {"trainingInput"});
    return ReadMap(value, key, "trainingInput.",
                   [this](absl::string_view inner_key, const Value& inner) {
                     return ReadTraining(inner_key, inner);
                   });
  }

  Status ReadTraining(absl::string_view key, const Value& value) {
    const std::string name = absl::StrCat("trainingInput.", key);
    for (const auto& [known, field] : Texts()) {
      if (key == known) return ReadText(name, value, field);
    }
    for (const auto& [known, field] : Counts()) {
      if (key == known) return ReadCount(name, value, field);
    }
    if (key == "args") return ReadArgs(name, value);
    if (key == "useChiefInTfConfig") {
      const bool yes =
          value.kind == Value::Kind::kText && absl::EqualsIgnoreCase(value.text, "true");
      const bool no =
          value.kind == Value::Kind::kText && absl::EqualsIgnoreCase(value.text, "false");
      if (!yes && !no) return file_.Wrong(value, name, "must be true or false");
      config_.use_chief = yes;
      return absl::OkStatus();
    }
    // Accelerators by the later form: masterConfig: {acceleratorConfig: {count: 1, type: ...}}.
    if (absl::EndsWith(key, "Config") && value.kind == Value::Kind::kMap) {
      for (size_t i = 0; i + 1 < value.items.size(); i += 2) {
        if (value.items[i]->text != "acceleratorConfig") continue;
        return Unimplemented(file_.At(value.items[i]->mark), name,
                             ".acceleratorConfig must not be given: ", kOnTheCpu);
      }
    }
    return Unknown(key, {"scaleTier", "masterType", "workerType", "parameterServerType",
                         "workerCount", "parameterServerCount", "evaluatorType", "evaluatorCount",
                         "useChiefInTfConfig", "args", "jobDir"});
  }

  std::map<absl::string_view, std::optional<std::string>*> Texts() {
    return {{"scaleTier", &config_.scale_tier},
            {"masterType", &config_.master_type},
            {"workerType", &config_.worker_type},
            {"parameterServerType", &config_.parameter_server_type},
            {"evaluatorType", &config_.evaluator_type},
            {"jobDir", &config_.job_dir}};
  }
  std::map<absl::string_view, std::optional<int>*> Counts() {
    return {{"workerCount", &config_.worker_count},
            {"parameterServerCount", &config_.parameter_server_count},
            {"evaluatorCount", &config_.evaluator_count}};
  }

  Status ReadText(absl::string_view name, const Value& value, std::optional<std::string>* field) {
    if (value.kind != Value::Kind::kText || value.text.empty()) {
      return file_.Wrong(value, name, "must be a text");
    }
    *field = value.text;
    return absl::OkStatus();
  }

  // A number, or one in quotes, as gcloud's own files have it.
  Status ReadCount(absl::string_view name, const Value& value, std::optional<int>* field) {
    const int most = absl::EndsWith(name, "evaluatorCount") ? 1 : kMaxTasksOfJob;
    int number = -1;
    const bool digits = value.kind == Value::Kind::kText && !value.text.empty() &&
                        std::all_of(value.text.begin(), value.text.end(), [](char c) {
                          return absl::ascii_isdigit(static_cast<unsigned char>(c));
                        });
    if (!digits || !absl::SimpleAtoi(value.text, &number) || number > most) {
      return file_.Wrong(value, name, absl::StrCat("must be an integer in [0, ", most, "]"));
    }
    *field = number;
    return absl::OkStatus();
  }

  Status ReadArgs(absl::string_view name, const Value& value) {
    if (value.kind != Value::Kind::kList)
      return file_.Wrong(value, name, "must be a list of texts");
    if (value.items.size() > kMaxArgs) {
      return InvalidArgument(file_.At(value.mark), name, " must have at most ", kMaxArgs,
                             " texts, got ", value.items.size());
    }
    config_.args.emplace();
    for (size_t i = 0; i < value.items.size(); ++i) {
      const Value& item = *value.items[i];
      if (item.kind != Value::Kind::kText) {
        return file_.Wrong(item, absl::StrCat(name, "[", i, "]"), "must be a text");
      }
      config_.args->push_back(item.text);
    }
    return absl::OkStatus();
  }

  const File file_;
  JobConfig config_;
};

bool IsAccelerator(absl::string_view name) {
  const std::string lower = absl::AsciiStrToLower(name);
  for (const absl::string_view part :
       {"gpu", "tpu", "_k80", "_p4", "_p100", "_v100", "_t4", "_a100"}) {
    if (absl::StrContains(lower, part)) return true;
  }
  // Machines of Compute Engine that have GPUs by themselves.
  return absl::StartsWith(lower, "a2-") || absl::StartsWith(lower, "a3-") ||
         absl::StartsWith(lower, "g2-");
}

// "scale-tier-standard-1" -> "STANDARD_1".
std::string TierName(absl::string_view text) {
  std::string name = absl::StrReplaceAll(absl::AsciiStrToUpper(text), {{"-", "_"}});
  return std::string(absl::StripPrefix(name, "SCALE_TIER_"));
}

}  // namespace

StatusOr<JobConfig> ParseJobConfig(absl::string_view text, absl::string_view name) {
  return Reader(name).Read(text);
}

JobConfig OverJobConfig(const JobConfig& file, const JobConfig& flags) {
  JobConfig config = file;
  const auto over = [](const auto& given, auto* value) {
    if (given) *value = given;
  };
  over(flags.scale_tier, &config.scale_tier);
  over(flags.master_type, &config.master_type);
  over(flags.worker_type, &config.worker_type);
  over(flags.parameter_server_type, &config.parameter_server_type);
  over(flags.evaluator_type, &config.evaluator_type);
  over(flags.worker_count, &config.worker_count);
  over(flags.parameter_server_count, &config.parameter_server_count);
  over(flags.evaluator_count, &config.evaluator_count);
  over(flags.use_chief, &config.use_chief);
  over(flags.job_dir, &config.job_dir);
  over(flags.args, &config.args);
  if (file.args && flags.args && *file.args != *flags.args) {
    config.warnings.push_back(
        absl::StrCat("the arguments behind the program count; trainingInput.args is ignored: ",
                     absl::StrJoin(*file.args, " ")));
  }
  config.warnings.insert(config.warnings.end(), flags.warnings.begin(), flags.warnings.end());
  return config;
}

StatusOr<JobTasks> TasksOf(const JobConfig& config) {
  const bool counts = config.worker_count || config.parameter_server_count;
  const std::string given = config.scale_tier.value_or(counts ? "CUSTOM" : "BASIC");
  JobTasks tasks;
  tasks.tier = TierName(given);
  if (tasks.tier == "STANDARD_1") {
    tasks.workers = 4;
    tasks.ps = 3;
  } else if (tasks.tier == "PREMIUM_1") {
    tasks.workers = 19;
    tasks.ps = 11;
  } else if (tasks.tier == "CUSTOM") {
    tasks.workers = config.worker_count.value_or(0);
    tasks.ps = config.parameter_server_count.value_or(0);
  } else if (IsAccelerator(tasks.tier)) {
    return Unimplemented("scale tier ", tasks.tier, " must not be asked for: ", kOnTheCpu,
                         "; BASIC is one process, STANDARD_1 eight");
  } else if (tasks.tier != "BASIC") {
    return InvalidArgument("scale tier must be BASIC, STANDARD_1, PREMIUM_1 or CUSTOM, got ",
                           Quoted(given));
  }
  if (counts && tasks.tier != "CUSTOM") {
    return InvalidArgument(
        "workerCount and parameterServerCount must be given with scale tier "
        "CUSTOM, got ",
        tasks.tier);
  }
  for (const auto& [key, type] :
       {std::pair{"masterType", &config.master_type}, std::pair{"workerType", &config.worker_type},
        std::pair{"parameterServerType", &config.parameter_server_type},
        std::pair{"evaluatorType", &config.evaluator_type}}) {
    if (*type && IsAccelerator(**type)) {
      return Unimplemented(key, " must be a machine without accelerators: ", kOnTheCpu, ", got ",
                           Quoted(**type));
    }
  }
  tasks.evaluator = config.evaluator_count.value_or(0) > 0;
  if (tasks.evaluator && !config.use_chief.value_or(true)) {
    return InvalidArgument(
        "evaluatorCount must be 0 with a master, which evaluates itself, got 1; "
        "set useChiefInTfConfig");
  }
  if (config.use_chief.value_or(tasks.evaluator)) tasks.chief = "chief";
  if (tasks.workers > 0 && tasks.ps == 0) {
    return InvalidArgument("parameterServerCount must be >= 1 with workers, got 0: each of the ",
                           tasks.trainers(), " trainers would train a model of its own");
  }
  return tasks;
}

}  // namespace millrace
