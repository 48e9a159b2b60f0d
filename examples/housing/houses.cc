// SPDX-License-Identifier: Apache-2.0
#include "examples/housing/houses.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/file_system.h"
#include "data/csv.h"
#include "estimator/add_metrics.h"
#include "estimator/canned/dnn_linear_combined.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/parse_spec.h"
#include "estimator/serving_input.h"
#include "graph/scope.h"
#include "ops/array/constant.h"
#include "ops/math/cwise_binary.h"
#include "train/adagrad.h"
#include "train/ftrl.h"
#include "train/metrics.h"

namespace millrace {
namespace {

const std::vector<std::string>& Names() {
  static const auto* const names =
      new std::vector<std::string>{"longitude",  "latitude", "median_age", "rooms", "population",
                                   "households", "income",   "ocean",      "price"};
  return *names;
}
constexpr std::array<const char*, 4> kOcean = {"NEAR OCEAN", "<1H OCEAN", "INLAND", "NEAR BAY"};

struct House {
  float longitude, latitude, median_age, rooms, population, households, income;
  std::string ocean;
  float price;
};

// Numbers of one row: the bits of a counter, well mixed (SplitMix64).
class Draw {
 public:
  Draw(uint64_t seed, int64_t row)
      : state_(seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(row)) {
    Next();
  }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }
  double Uniform(double low, double high) { return low + (high - low) * Uniform(); }
  double Normal() {
    return std::sqrt(-2 * std::log(1 - Uniform())) * std::cos(6.283185307179586 * Uniform());
  }

 private:
  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

House HouseAt(uint64_t seed, int64_t row) {
  Draw draw(seed, row);
  House house;
  const double latitude = draw.Uniform(32.5, 42);
  // The coast runs from southeast to northwest, and more to the north beyond the bay.
  const double coast =
      latitude < 37.8 ? -118.4 - (latitude - 34) * 1.105 : -122.6 - (latitude - 37.8) * 0.4;
  const double inland = std::abs(draw.Normal()) * 1.2;  // degrees
  const double longitude = coast + inland;
  const double income = std::exp(draw.Uniform(-0.4, 2.2));
  const double age = std::floor(draw.Uniform(1, 52));
  const double households = std::floor(std::exp(draw.Uniform(4, 7.5)));
  const double rooms = std::floor(households * draw.Uniform(3.5, 7.5));
  const double population = std::floor(households * draw.Uniform(1.8, 4));
  const auto near = [&](double x, double y) {
    const double square = (longitude - x) * (longitude - x) + (latitude - y) * (latitude - y);
    return std::exp(-square / 1.5);
  };
  const double bay = near(-122.4, 37.8), angeles = near(-118.2, 34.0);
  const char* ocean = inland > 1 ? kOcean[2] : inland > 0.3 ? kOcean[1] : kOcean[0];
  if (bay > 0.6 && inland <= 1) ocean = kOcean[3];
  double price = 0.3 + 0.38 * income + 1.1 * bay + 0.8 * angeles + 0.004 * age;
  if (inland <= 0.3) price += 0.5;
  price += 0.55 * draw.Normal();
  house.longitude = static_cast<float>(longitude);
  house.latitude = static_cast<float>(latitude);
  house.median_age = static_cast<float>(age);
  house.rooms = static_cast<float>(rooms);
  house.population = static_cast<float>(population);
  house.households = static_cast<float>(households);
  house.income = static_cast<float>(income);
  house.ocean = ocean;
  house.price = static_cast<float>(std::clamp(price, 0.15, 6.0));
  return house;
}

// Divided so that numbers are about 1: networks learn from such.
Normalizer Scaled(float center, float scale) {
  return [center, scale](const Scope& scope, const Output& x) {
    return RealDiv(scope, Sub(scope, x, Const(scope, center)), Const(scope, scale));
  };
}

std::vector<float> Grid(float low, float high, int parts) {
  std::vector<float> boundaries;
  for (int i = 1; i < parts; ++i) {
    boundaries.push_back(low + (high - low) * static_cast<float>(i) / static_cast<float>(parts));
  }
  return boundaries;
}

struct Columns {
  std::vector<FeatureColumn> wide;
  std::vector<DenseColumn> deep;
};

Columns HouseColumns() {
  const NumericColumn longitude("longitude", {.normalizer = Scaled(-119.5f, 2)});
  const NumericColumn latitude("latitude", {.normalizer = Scaled(37, 2.5f)});
  const NumericColumn age("median_age", {.normalizer = Scaled(26, 15)});
  const NumericColumn rooms("rooms", {.normalizer = Scaled(3000, 3000)});
  const NumericColumn population("population", {.normalizer = Scaled(1500, 1500)});
  const NumericColumn households("households", {.normalizer = Scaled(500, 500)});
  const NumericColumn income("income", {.normalizer = Scaled(3, 2)});
  const auto ocean = CategoricalColumnWithVocabularyList(
      "ocean", Vocabulary(std::vector<std::string>(kOcean.begin(), kOcean.end())));
  const BucketizedColumn east(NumericColumn("longitude"), Grid(-125, -113, 24));
  const BucketizedColumn north(NumericColumn("latitude"), Grid(32.5f, 42, 19));
  const BucketizedColumn incomes(NumericColumn("income"), {1, 2, 3, 4, 5, 6, 7, 8});
  const auto place = CrossedColumn({east, north}, 1000);
  return {.wide = {ocean, incomes, place},
          .deep = {longitude, latitude, age, rooms, population, households, income,
                   IndicatorColumn(ocean), EmbeddingColumn(place, 8)}};
}

}  // namespace

Status WriteHouses(const std::string& path, uint64_t seed, int64_t first, int64_t count) {
  MR_ASSIGN_OR_RETURN(const auto file, FileSystem::Default()->NewWritableFile(path));
  for (int64_t row = first; row < first + count; ++row) {
    const House h = HouseAt(seed, row);
    MR_RETURN_IF_ERROR(file->Append(absl::StrFormat(
        "%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%s,%.9g\n", h.longitude, h.latitude, h.median_age,
        h.rooms, h.population, h.households, h.income, h.ocean, h.price)));
  }
  return file->Close();
}

data::Dataset DrawnHouses(uint64_t seed, int64_t count, int64_t batch_size) {
  data::ElementSpec spec;
  for (const std::string& name : Names()) {
    spec.push_back(
        {.dtype = name == "ocean" ? DT_STRING : DT_FLOAT, .shape = PartialShape{-1}, .name = name});
  }
  const auto factory = [=](auto*) -> StatusOr<data::Generator> {
    return data::Generator(
        [=, next = int64_t{0}](data::Element* element) mutable -> StatusOr<bool> {
          const int64_t rows = std::min(batch_size, count - next);
          if (rows <= 0) return false;
          element->clear();
          for (size_t i = 0; i < Names().size(); ++i) {
            MR_ASSIGN_OR_RETURN(
                Tensor column,
                Tensor::Zeros(Names()[i] == "ocean" ? DT_STRING : DT_FLOAT, Shape{rows}));
            element->push_back(std::move(column));
          }
          for (int64_t i = 0; i < rows; ++i) {
            const House h = HouseAt(seed, next + i);
            const size_t at = static_cast<size_t>(i);
            const float numbers[] = {h.longitude,  h.latitude,   h.median_age, h.rooms,
                                     h.population, h.households, h.income};
            for (size_t k = 0; k < std::size(numbers); ++k) {
              (*element)[k].mutable_flat<float>()[at] = numbers[k];
            }
            (*element)[7].mutable_flat<std::string>()[at] = h.ocean;
            (*element)[8].mutable_flat<float>()[at] = h.price;
          }
          next += rows;
          return true;
        });
  };
  return data::Dataset::FromGenerator(factory, spec);
}

InputFn ReadHouses(const std::string& directory, const std::string& name, Mode mode,
                   int64_t batch_size) {
  return [=](const RunConfig& config) {
    data::CsvOptions csv;
    for (const std::string& column : Names()) {
      csv.defaults.push_back(column == "ocean" ? Tensor::Scalar("INLAND") : Tensor::Scalar(0.0f));
    }
    csv.names = Names();
    data::Dataset rows = data::Dataset::TextLines({absl::StrCat(directory, "/", name, ".csv")})
                             .Map(data::DecodeCsv(csv));
    if (mode == Mode::kTrain) {
      rows = rows.Shuffle(config.num_worker_replicas() * batch_size).Repeat();
    }
    return Input(rows.Batch(batch_size), {.labels = {"price"}});
  };
}

Estimator HousePrices(const EstimatorOptions& options) {
  const Columns columns = HouseColumns();
  const Estimator estimator =
      DNNLinearCombinedRegressor({.linear_feature_columns = columns.wide,
                                  .linear_optimizer = FtrlOptions{.learning_rate = 0.05},
                                  .dnn_feature_columns = columns.deep,
                                  .dnn_optimizer = AdagradOptions{.learning_rate = 0.05},
                                  .dnn_hidden_units = {64, 32}},
                                 options);
  return AddMetrics(
      estimator, [](const Scope& scope, const Labels& labels, const Predictions& predictions) {
        return MetricOps{
            {"rmse", metrics::RootMeanSquaredError(scope, labels, predictions["predictions"])}};
      });
}

StatusOr<ServingInputReceiverFn> HouseReceiver() {
  const Columns columns = HouseColumns();
  std::vector<FeatureColumn> all = columns.wide;
  all.insert(all.end(), columns.deep.begin(), columns.deep.end());
  MR_ASSIGN_OR_RETURN(const FeatureSpecs specs, MakeParseExampleSpec(all));
  return BuildParsingServingInputReceiverFn(specs);
}

}  // namespace millrace
