// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_CENSUS_PEOPLE_H_
#define MILLRACE_EXAMPLES_CENSUS_PEOPLE_H_

// People of the UCI Census Income data ("Adult"): rows of text, and what an Estimator trains on.
//
// A row has 15 columns; a blank follows every comma and is part of the text, in words and in
// labels: " Male", " >50K". Without files, DrawPeople makes up rows: in the same form,
// with a rule that decides, not without luck, who earns much.
//
// Values; thread-compatible. Failure: of a row that is none, with its file and line; of a label
// that is neither of the two.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/csv.h"
#include "data/dataset.h"
#include "estimator/input_fn.h"

namespace millrace::census {

inline constexpr char kLabelColumn[] = "income_bracket";
// Which of them is the label, as text: class 0 and class 1.
const std::vector<std::string>& LabelTexts();

// What the 15 columns are, in the order of the file.
data::CsvOptions PersonFormat();
// Those that the model does not use, the label among them.
std::vector<std::string> ColumnsLeftOut();

struct PeopleOptions {
  std::vector<std::string> files = {};  // none: `rows`
  std::vector<std::string> rows = {};
  std::optional<int64_t> num_epochs = {};  // none: without end
  bool shuffle = true;                     // of ten batches at a time
  int64_t skip_header_lines = 0;           // of all files together: of the first one
  int64_t batch_size = 40;
  // Files that are not larger together are parsed in the first epoch and kept in memory for others.
  int64_t most_kept_bytes = 0;
  // What is made of the people one by one, before they are shuffled; none: nothing. They come by
  // with the features by their names and the class as the label.
  std::function<data::Dataset(const data::Dataset&)> prepare = {};
};
// Features by their names and the class of each person.
InputFn People(const PeopleOptions& options);

// `count` rows; equal seeds give equal rows.
std::vector<std::string> DrawPeople(int64_t count, uint64_t seed);

}  // namespace millrace::census

#endif  // MILLRACE_EXAMPLES_CENSUS_PEOPLE_H_
