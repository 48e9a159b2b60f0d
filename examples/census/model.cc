// SPDX-License-Identifier: Apache-2.0
#include "examples/census/model.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "data/parse_features.h"
#include "estimator/canned/dnn_linear_combined.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/parse_spec.h"
#include "estimator/columns/row_ids.h"
#include "estimator/model_fn.h"
#include "examples/census/people.h"
#include "examples/census/vocabularies.h"
#include "graph/scope.h"
#include "ops/ops.h"
#include "train/hooks/progress_hook.h"

namespace millrace::census {
namespace {

CategoricalColumn Words(const char* key, const std::vector<std::string>& words) {
  return CategoricalColumnWithVocabularyList(key, words);
}
CategoricalColumn Hashed(const char* key) { return CategoricalColumnWithHashBucket(key, 100); }

const CategoricalColumn& Gender() {
  static const auto* const column = new CategoricalColumn(Words("gender", Genders()));
  return *column;
}
const CategoricalColumn& Race() {
  static const auto* const column = new CategoricalColumn(Words("race", Races()));
  return *column;
}
const CategoricalColumn& Education() {
  static const auto* const column = new CategoricalColumn(Words("education", Educations()));
  return *column;
}
const CategoricalColumn& MaritalStatus() {
  static const auto* const column =
      new CategoricalColumn(Words("marital_status", MaritalStatuses()));
  return *column;
}
const CategoricalColumn& Relationship() {
  static const auto* const column = new CategoricalColumn(Words("relationship", Relationships()));
  return *column;
}
const CategoricalColumn& Workclass() {
  static const auto* const column = new CategoricalColumn(Words("workclass", Workclasses()));
  return *column;
}
const CategoricalColumn& Occupation() {
  static const auto* const column = new CategoricalColumn(Hashed("occupation"));
  return *column;
}
const CategoricalColumn& NativeCountry() {
  static const auto* const column = new CategoricalColumn(Hashed("native_country"));
  return *column;
}

constexpr const char* kNumbers[] = {"age", "education_num", "capital_gain", "capital_loss",
                                    "hours_per_week"};

std::vector<FeatureColumn> WideColumns() {
  const BucketizedColumn ages(NumericColumn("age"), {18, 25, 30, 35, 40, 45, 50, 55, 60, 65});
  return {CrossedColumn({"education", "occupation"}, 10'000),
          CrossedColumn({ages, Race(), "occupation"}, 1'000'000),
          CrossedColumn({"native_country", "occupation"}, 10'000),
          Gender(),
          NativeCountry(),
          Education(),
          Occupation(),
          Workclass(),
          MaritalStatus(),
          Relationship(),
          ages};
}

std::vector<DenseColumn> DeepColumns(const ModelOptions& options) {
  std::vector<DenseColumn> columns = {IndicatorColumn(Workclass()),
                                      IndicatorColumn(Education()),
                                      IndicatorColumn(MaritalStatus()),
                                      IndicatorColumn(Gender()),
                                      IndicatorColumn(Relationship()),
                                      IndicatorColumn(Race()),
                                      EmbeddingColumn(NativeCountry(), options.embedding_size),
                                      EmbeddingColumn(Occupation(), options.embedding_size)};
  for (const char* key : kNumbers) {
    NumericColumnOptions number;
    if (key == std::string("capital_gain") && options.capital_gain_scale != 1) {
      number.normalizer = [scale = options.capital_gain_scale](const Scope& scope,
                                                               const Output& x) {
        // The files have whole numbers.
        return Mul(scope, Cast(scope, x, DT_FLOAT), Const(scope, static_cast<float>(scale)));
      };
    }
    columns.push_back(NumericColumn(key, number));
  }
  return columns;
}

// What the model is given, in the order in which its users' graphs have it.
std::vector<FeatureColumn> InputColumns() {
  std::vector<FeatureColumn> columns = {Gender(),       Race(),      Education(),  MaritalStatus(),
                                        Relationship(), Workclass(), Occupation(), NativeCountry()};
  for (const char* key : kNumbers) columns.push_back(NumericColumn(key));
  return columns;
}

ServingInputReceiver JsonReceiver(const Scope& scope) {
  Features::Map inputs;
  // Placeholder, Placeholder_1, ...
  for (const CategoricalColumn& column :
       {Gender(), Race(), Education(), MaritalStatus(), Relationship(), Workclass(), Occupation(),
        NativeCountry()}) {
    inputs[column.name()] = Placeholder(scope, DT_STRING, {-1});
  }
  for (const char* key : kNumbers) inputs[key] = Placeholder(scope, DT_FLOAT, {-1});
  return {.features = inputs, .receivers = inputs};
}

StatusOr<ServingInputReceiver> ExampleReceiver(const Scope& scope) {
  MR_ASSIGN_OR_RETURN(const FeatureSpecs specs, MakeParseExampleSpec(InputColumns()));
  const Output serialized = Placeholder(scope, DT_STRING, {-1});
  ParsedFeatures parsed = ParseExample(scope, serialized, specs);
  return ServingInputReceiver{
      .features = Features(std::move(parsed.dense), std::move(parsed.sparse)),
      .receivers = {{"example_proto", serialized}}};
}

}  // namespace

std::vector<int64_t> HiddenUnits(int64_t first, int64_t layers, double scale) {
  std::vector<int64_t> units;
  for (int64_t i = 0; i < layers; ++i) {
    const double size = static_cast<double>(first) * std::pow(scale, static_cast<double>(i));
    units.push_back(std::max<int64_t>(2, static_cast<int64_t>(size)));
  }
  return units;
}

Estimator IncomeModel(const ModelOptions& options, const RunConfig& config) {
  const Estimator income = DNNLinearCombinedClassifier({.linear_feature_columns = WideColumns(),
                                                        .dnn_feature_columns = DeepColumns(options),
                                                        .dnn_hidden_units = options.hidden_units},
                                                       {.config = config});
  if (!income.status().ok()) return income;
  // The same, with a line that says how far it is.
  const auto with_progress = [model = income.model_fn()](
                                 const Scope& scope, const Features& features, const Labels& labels,
                                 Mode mode, const Params& params,
                                 const RunConfig& run) -> StatusOr<EstimatorSpec> {
    MR_ASSIGN_OR_RETURN(EstimatorSpec spec,
                        model(ModelFnCall{scope, features, labels, mode, params, run}));
    if (mode == Mode::kTrain) {
      spec.training_hooks.push_back(
          std::make_shared<ProgressHook>(ProgressHookOptions{.loss = spec.loss}));
    }
    return spec;
  };
  return Estimator::MakeAt(std::source_location::current(), with_progress, {.config = config});
}

data::Dataset WithIds(const ModelOptions& options, const data::Dataset& people) {
  return GiveIds(people, DeepColumns(options), WideColumns());
}

ServingInputReceiverFn Receiver(ExportFormat format) {
  switch (format) {
    case ExportFormat::kCsv:
      return BuildCsvServingInputReceiverFn(PersonFormat(), {.left_out = ColumnsLeftOut()});
    case ExportFormat::kExample:
      return ExampleReceiver;
    case ExportFormat::kJson:
      break;
  }
  return JsonReceiver;
}

}  // namespace millrace::census
