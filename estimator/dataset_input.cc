// SPDX-License-Identifier: Apache-2.0
#include "estimator/dataset_input.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/session.h"

namespace millrace {
namespace {

// Runs MakeIterator with the dataset, in each session.
class InitializeInputHook : public SessionRunHook {
 public:
  explicit InitializeInputHook(data::InitializableIterator iterator)
      : iterator_(std::move(iterator)) {}
  std::string name() const override { return "InitializeInputHook"; }
  Status AfterCreateSession(RunContext*, const CreatedSession& created) override {
    return created.session->Run({{iterator_.dataset, iterator_.feed}}, {}, {iterator_.initializer})
        .status();
  }

 private:
  const data::InitializableIterator iterator_;
};

// Whose component is whose.
struct Columns {
  std::vector<std::string> names;  // empty: features and labels are single tensors
  std::set<std::string> labels;
};

StatusOr<Columns> ColumnsOf(const data::ElementSpec& spec, const DatasetColumns& given) {
  Columns columns;
  columns.names = given.names;
  if (columns.names.empty()) {
    for (const data::ComponentSpec& component : spec) {
      if (!component.name.empty()) columns.names.push_back(component.name);
    }
    if (columns.names.size() != spec.size()) columns.names.clear();
  }
  columns.labels.insert(given.labels.begin(), given.labels.end());
  if (columns.names.empty()) {
    if (!columns.labels.empty()) {
      return InvalidArgument(
          "Input: names must be given for labels to be among them, got none and label '",
          *columns.labels.begin(), "'; the dataset is ", data::SpecText(spec));
    }
    if (spec.size() <= 2) return columns;
    return InvalidArgument(
        "Input: names must be given for a dataset of more than a feature and a "
        "label, got none for ",
        data::SpecText(spec));
  }
  if (columns.names.size() != spec.size()) {
    return InvalidArgument("Input: there must be a name for each component of the dataset, ",
                           data::SpecText(spec), ", got ", columns.names.size());
  }
  std::set<std::string> seen;
  for (const std::string& name : columns.names) {
    if (name.empty() || !seen.insert(name).second) {
      return InvalidArgument("Input: names must be texts that differ, got '", name, "'",
                             name.empty() ? "" : " twice");
    }
  }
  for (const std::string& label : columns.labels) {
    if (seen.count(label) > 0) continue;
    return InvalidArgument("Input: labels must be among the names, '",
                           absl::StrJoin(columns.names, "', '"), "', got '", label, "'");
  }
  if (columns.labels.size() == columns.names.size()) {
    return InvalidArgument("Input: at least one component must be a feature, got labels alone");
  }
  return columns;
}

}  // namespace

StatusOr<DatasetInput> MakeDatasetInput(const Scope& scope, const data::Dataset& dataset,
                                        const DatasetColumns& given,
                                        const data::IteratorOptions& options) {
  MR_RETURN_IF_ERROR(dataset.status());
  MR_ASSIGN_OR_RETURN(const Columns columns, ColumnsOf(dataset.spec(), given));
  data::InitializableIterator iterator = data::MakeInitializableIterator(scope, dataset, options);
  MR_RETURN_IF_ERROR(scope.status());
  DatasetInput input;
  const std::vector<Output>& next = iterator.next;
  if (columns.names.empty()) {
    input.features = next[0];
    if (next.size() > 1) input.labels = next[1];
  } else {
    Features::Map features;
    Labels::Map labels;
    for (size_t i = 0; i < next.size(); ++i) {
      const std::string& name = columns.names[i];
      (columns.labels.count(name) > 0 ? labels : features)[name] = next[i];
    }
    input.features = std::move(features);
    input.labels = std::move(labels);
  }
  input.initializer = std::make_shared<InitializeInputHook>(iterator);
  input.iterator = std::move(iterator);
  return input;
}

}  // namespace millrace
