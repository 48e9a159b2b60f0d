// SPDX-License-Identifier: Apache-2.0
#include "examples/census/people.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "data/block.h"
#include "data/dataset.h"
#include "data/row_function.h"
#include "examples/census/vocabularies.h"

namespace millrace {
class Arena;
}

namespace millrace::census {
namespace {

using data::Dataset;

// The class of a label that is text.
StatusOr<int64_t> ClassOf(absl::string_view label) {
  const std::vector<std::string>& texts = LabelTexts();
  for (size_t i = 0; i < texts.size(); ++i) {
    if (label == texts[i]) return static_cast<int64_t>(i);
  }
  return InvalidArgument("census: ", kLabelColumn, " must be '", texts[0], "' or '", texts[1],
                         "', got '", label, "'");
}

// Rows of text as features and classes. It is a function of rows, and stands before the shuffle:
// what is no feature never enters that, and a label that is none is told with its file and line.
class PersonOfRow : public data::RowFunction {
 public:
  explicit PersonOfRow(std::shared_ptr<const data::RowFunction> csv) : csv_(std::move(csv)) {
    const std::vector<std::string> names = PersonFormat().names, left_out = ColumnsLeftOut();
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == kLabelColumn) label_ = i;
      if (!absl::c_linear_search(left_out, names[i])) chosen_.push_back(i);
    }
  }
  std::string Name() const override { return "PersonOfRow"; }

  StatusOr<data::ElementSpec> OutputSpec(const data::ElementSpec& input) const override {
    MR_ASSIGN_OR_RETURN(const data::ElementSpec columns, csv_->OutputSpec(input));
    data::ElementSpec spec;
    for (const size_t i : chosen_) spec.push_back(columns[i]);
    spec.push_back({DT_INT64, columns[label_].shape, kLabelColumn});
    return spec;
  }

  StatusOr<data::Element> Call(const data::Element& row, Arena* arena) const override {
    MR_ASSIGN_OR_RETURN(data::Element columns, csv_->Call(row, arena));
    const Tensor& labels = columns[label_];
    MR_ASSIGN_OR_RETURN(Tensor classes, Tensor::Allocate(DT_INT64, labels.shape()));
    int64_t* to = classes.mutable_raw<int64_t>().data();
    for (const std::string& label : labels.raw<std::string>()) {
      MR_ASSIGN_OR_RETURN(*to++, ClassOf(label));
    }
    data::Element person;
    for (const size_t i : chosen_) person.push_back(std::move(columns[i]));
    person.push_back(std::move(classes));
    return person;
  }

  Status CallBlock(const data::Block& in, Arena* arena, data::Block* out,
                   Status* error) const override {
    data::Block columns;
    MR_RETURN_IF_ERROR(csv_->CallBlock(in, arena, &columns, error));
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({columns.rows}));
    MR_ASSIGN_OR_RETURN(Tensor classes, Tensor::Allocate(DT_INT64, shape));
    int64_t* const to = classes.mutable_raw<int64_t>().data();
    out->rows = columns.rows;
    for (int64_t row = 0; row < out->rows; ++row) {
      const StatusOr<int64_t> label =
          ClassOf(columns.columns[label_].strings[static_cast<size_t>(row)]);
      if (!label.ok()) {
        *error = label.status();
        out->rows = row;
        break;
      }
      to[row] = *label;
    }
    out->columns.clear();
    for (const size_t i : chosen_) out->columns.push_back(std::move(columns.columns[i]));
    out->columns.push_back({.stacked = std::move(classes)});
    if (out->rows < columns.rows) *out = data::Slice(*out, 0, out->rows);
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<const data::RowFunction> csv_;
  std::vector<size_t> chosen_;  // columns that are features
  size_t label_ = 0;
};

StatusOr<std::shared_ptr<const data::RowFunction>> PeopleOfRows() {
  MR_ASSIGN_OR_RETURN(auto csv, data::DecodeCsv(PersonFormat()));
  return std::make_shared<const PersonOfRow>(std::move(csv));
}

// A file that cannot be looked at is an error of the code that reads it.
bool AreKept(const PeopleOptions& options) {
  if (options.num_epochs == 1) return false;
  auto room = static_cast<uint64_t>(options.most_kept_bytes);
  for (const std::string& file : options.files) {
    const StatusOr<uint64_t> size = FileSystem::Default()->GetFileSize(file);
    if (!size.ok() || *size > room) return false;
    room -= *size;
  }
  return options.most_kept_bytes > 0;
}

}  // namespace

const std::vector<std::string>& LabelTexts() {
  static const auto* const texts = new std::vector<std::string>{" <=50K", " >50K"};
  return *texts;
}

data::CsvOptions PersonFormat() {
  const Tensor number = Tensor::Scalar(int32_t{0}), text = Tensor::Scalar("");
  return {.defaults = {number, text, number, text, number, text, text, text, text, text, number,
                       number, number, text, text},
          .names = {"age", "workclass", "fnlwgt", "education", "education_num", "marital_status",
                    "occupation", "relationship", "race", "gender", "capital_gain", "capital_loss",
                    "hours_per_week", "native_country", kLabelColumn}};
}

std::vector<std::string> ColumnsLeftOut() { return {"fnlwgt", kLabelColumn}; }

InputFn People(const PeopleOptions& options) {
  return [options]() -> StatusOr<Input> {
    const auto rows = [&]() -> StatusOr<Dataset> {
      if (!options.files.empty()) return Dataset::TextLines(options.files);
      MR_ASSIGN_OR_RETURN(Tensor texts,
                          Tensor::FromValues<std::string>(
                              Shape{static_cast<int64_t>(options.rows.size())}, options.rows));
      return Dataset::FromTensorSlices({std::move(texts)});
    };
    MR_ASSIGN_OR_RETURN(Dataset people, rows());
    people = people.Skip(options.skip_header_lines).Map(PeopleOfRows());
    if (options.prepare) people = options.prepare(people);
    if (AreKept(options)) people = people.Cache();
    if (options.shuffle) people = people.Shuffle(10 * options.batch_size);
    people = people.Repeat(options.num_epochs.value_or(data::kForever))
                 .Batch(options.batch_size)
                 .Prefetch(data::kAutotune);
    MR_RETURN_IF_ERROR(people.status());
    return Input(people, {.labels = {kLabelColumn}});
  };
}

std::vector<std::string> DrawPeople(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed * 1000003 + 17);
  const auto below = [&random](size_t n) { return random() % n; };
  // Uniform in [0, 1), the same with every standard library.
  const auto uniform = [&random] { return static_cast<double>(random() >> 11) / 9007199254740992; };
  std::vector<std::string> rows;
  rows.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const size_t age = 17 + std::min(below(60), below(74));
    const size_t education = std::max(below(16), below(16));
    const bool married = uniform() < 0.15 + 0.4 * (age > 28 ? 1 : 0);
    const size_t occupation = below(Occupations().size());
    const bool male = uniform() < 0.67;
    const bool gained = uniform() < 0.08;
    const size_t gain = gained ? 100 + below(5'000) : 0;
    const size_t loss = !gained && uniform() < 0.05 ? 1'000 + below(1'500) : 0;
    const size_t hours = std::min<size_t>(99, 20 + below(40) + (uniform() < 0.1 ? 20 : 0));
    // Log odds of earning much.
    const double odds = -8.7 + 0.45 * (static_cast<double>(education) - 6) + (married ? 3.3 : 0) +
                        (gain > 2'000 ? 3 : 0) + (loss > 0 ? 1 : 0) +
                        0.05 * (static_cast<double>(hours) - 40) +
                        0.06 * static_cast<double>(std::min<size_t>(age, 50)) +
                        0.6 * static_cast<double>(occupation % 4);
    const bool much = uniform() < 1 / (1 + std::exp(-odds));
    const std::string marital = married    ? " Married-civ-spouse"
                                : age < 30 ? " Never-married"
                                           : " Divorced";
    const std::string relationship = married    ? (male ? " Husband" : " Wife")
                                     : age < 25 ? " Own-child"
                                                : " Not-in-family";
    rows.push_back(absl::StrCat(
        age, ",", uniform() < 0.7 ? " Private" : Workclasses()[below(Workclasses().size())], ", ",
        20'000 + below(400'000), ",", EducationsByYears()[education], ", ", education + 1, ",",
        marital, ",", Occupations()[occupation], ",", relationship, ",",
        uniform() < 0.85 ? " White" : Races()[below(Races().size())], ",",
        male ? " Male" : " Female", ", ", gain, ", ", loss, ", ", hours, ",",
        uniform() < 0.9 ? " United-States" : " Mexico", ",", LabelTexts()[much ? 1 : 0]));
  }
  return rows;
}

}  // namespace millrace::census
