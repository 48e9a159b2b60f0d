// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/logging_tensor.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/dtype.h"
#include "core/logging.h"
#include "runtime/session.h"

namespace millrace {
namespace {

constexpr int64_t kShownElements = 3;

template <typename T>
std::string Elements(const Tensor& value, int64_t shown) {
  std::vector<std::string> texts;
  const auto values = value.flat<T>();
  for (int64_t i = 0; i < shown; ++i) {
    const auto& element = values[static_cast<size_t>(i)];
    if constexpr (std::is_same_v<T, bool>) {
      texts.push_back(element ? "true" : "false");
    } else {
      texts.push_back(absl::StrCat(element));
    }
  }
  return absl::StrJoin(texts, " ");
}

std::string ElementsOf(const Tensor& value, int64_t shown) {
  switch (value.dtype()) {
    case DT_FLOAT:
      return Elements<float>(value, shown);
    case DT_DOUBLE:
      return Elements<double>(value, shown);
    case DT_INT32:
      return Elements<int32_t>(value, shown);
    case DT_INT64:
      return Elements<int64_t>(value, shown);
    case DT_BOOL:
      return Elements<bool>(value, shown);
    case DT_STRING:
      return Elements<std::string>(value, shown);
    default:
      return absl::StrCat("<", DTypeName(value.dtype()), ">");
  }
}

}  // namespace

std::string TextOf(const Tensor& value) {
  if (!value.has_value()) return "<none>";
  const int64_t shown = std::min(value.num_elements(), kShownElements);
  const std::string elements = ElementsOf(value, shown);
  if (value.rank() == 0) return elements;
  return absl::StrCat("[", elements, shown < value.num_elements() ? " ...]" : "]");
}

Status LoggingTensorHook::Begin(HookSetup* setup) {
  if (options_.tensors.empty()) {
    return InvalidArgument("tensors must be what is to be logged, got none");
  }
  if (!options_.every.valid() || (options_.every.never() && !options_.at_end)) {
    MR_RETURN_IF_ERROR(CheckEvery("every, without at_end,", options_.every));
  }
  std::vector<Output> fetches;
  for (const auto& [tag, tensor] : options_.tensors) fetches.push_back(tensor);
  group_ = setup->AddGroup({.fetches = std::move(fetches)});
  timer_ = StepTimer(options_.every);
  runs_ = 0;
  return absl::OkStatus();
}

StatusOr<GroupMask> LoggingTensorHook::BeforeRun(RunContext* context) {
  const bool due = timer_.IsDue(runs_, timer_.by_time() ? context->now() : absl::InfinitePast());
  return due ? MaskOf(group_) : kNoGroups;
}

Status LoggingTensorHook::AfterRun(RunContext* context, const RunValues& values) {
  const int64_t run = runs_++;
  if (!values.has(group_)) return absl::OkStatus();
  const auto elapsed = timer_.Since(run, context->now());
  timer_.Done(run, context->now());
  std::map<std::string, Tensor> tensors;
  int index = 0;
  for (const auto& [tag, tensor] : options_.tensors) {
    tensors.emplace(tag, values.value(group_, index++));
  }
  Log(tensors, elapsed ? std::make_optional(elapsed->time) : std::nullopt);
  return absl::OkStatus();
}

Status LoggingTensorHook::End(const LoopEnd& end) {
  if (!options_.at_end) return absl::OkStatus();
  std::vector<FetchName> fetches;
  for (const auto& [tag, tensor] : options_.tensors) fetches.emplace_back(tensor);
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> values, end.session->Run({}, fetches));
  std::map<std::string, Tensor> tensors;
  size_t index = 0;
  for (const auto& [tag, tensor] : options_.tensors) tensors.emplace(tag, values[index++]);
  Log(tensors, std::nullopt);
  return absl::OkStatus();
}

void LoggingTensorHook::Log(const std::map<std::string, Tensor>& values,
                            std::optional<absl::Duration> elapsed) const {
  std::string line;
  if (options_.formatter) {
    line = options_.formatter(values);
  } else {
    line = absl::StrJoin(values, ", ", [](std::string* out, const auto& value) {
      absl::StrAppend(out, value.first, " = ", TextOf(value.second));
    });
    if (elapsed) absl::StrAppendFormat(&line, " (%.3f sec)", absl::ToDoubleSeconds(*elapsed));
  }
  if (options_.sink) {
    options_.sink(line);
  } else {
    LogInfo(line);
  }
}

}  // namespace millrace
